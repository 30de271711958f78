"""What occurs more than once: documents and paragraphs by hash (``exact.py``), near-duplicates (``near.py``)."""

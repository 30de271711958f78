"""Moved: ``kinspan show document``."""

raise SystemExit("error: launch/rank_document.py is now: kinspan show document")

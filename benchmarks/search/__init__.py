"""Quality against latency of each way to search, and the search of vectors alone."""

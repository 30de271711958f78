"""The search of an index as an HTTP service."""

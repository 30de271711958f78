"""Moved: ``kinspan adapter combine``."""

raise SystemExit("error: launch/combine_adapters.py is now: kinspan adapter combine")

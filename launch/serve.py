"""Moved: ``kinspan serve``."""

raise SystemExit("error: launch/serve.py is now: kinspan serve")

"""Moved: ``kinspan show run``."""

raise SystemExit("error: launch/status.py is now: kinspan show run")

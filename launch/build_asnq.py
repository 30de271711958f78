"""Moved: ``kinspan data asnq``."""

raise SystemExit("error: launch/build_asnq.py is now: kinspan data asnq")

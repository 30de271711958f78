"""Moved: ``kinspan data las``."""

raise SystemExit("error: launch/build_las.py is now: kinspan data las")

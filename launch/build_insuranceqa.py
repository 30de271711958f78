"""Moved: ``kinspan data insuranceqa``."""

raise SystemExit("error: launch/build_insuranceqa.py is now: kinspan data insuranceqa")

"""Moved: ``kinspan show pairs``."""

raise SystemExit("error: launch/inspect_pairs.py is now: kinspan show pairs")

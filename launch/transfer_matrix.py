"""Moved: ``kinspan evaluate transfer``."""

raise SystemExit("error: launch/transfer_matrix.py is now: kinspan evaluate transfer")

"""Moved: ``kinspan show corpus``."""

raise SystemExit("error: launch/inspect_corpus.py is now: kinspan show corpus")

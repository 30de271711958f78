"""Measurements against peers, side by side in one run; each script is run by its path."""

"""Index and two-stage search over answers."""

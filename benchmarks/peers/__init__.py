"""The usual ways to train, beside which ours is measured, all on the same pairs and the same masks."""

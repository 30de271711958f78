"""The usual ways to train, beside which ours is measured: one file each, all on the same pairs and the same masks."""

"""Documents become a corpus (token shards on disk), from which pairs are sampled in batches. Imports no torch."""

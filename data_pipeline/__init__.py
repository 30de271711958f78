"""Documents -> Corpus (token shards on disk) -> PairStream -> Batch. Imports no torch."""

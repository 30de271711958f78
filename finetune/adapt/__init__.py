"""From documents, and labelled questions where there are some, to the best ranker for them, in one command."""

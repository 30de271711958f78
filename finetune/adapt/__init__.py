"""Finds the best ranker for documents, and for labelled questions if there are some, in one command."""

"""What is checked on all hosts before a long run: see docs/cluster.md."""

"""How well models of many sources rank on many targets, without labels: Rücklé et al., 2020 ("MultiCQA"), section 4."""

"""Adapters, small sets of parameters that are trained in a frozen encoder: bottlenecks, their fusion, and LoRA."""

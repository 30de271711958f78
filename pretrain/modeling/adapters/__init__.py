"""Small sets of trained parameters beside a frozen encoder: bottlenecks, their fusion, and LoRA."""

"""The study of transfer from forums, MultiCQA in miniature: adapters, one model of all, fusion, and what they rank."""

"""Many forums, and many adapters: memory, files and time of preparing them and of training on them."""

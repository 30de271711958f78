"""Command-line entries. Each puts the repository root where its own folder stood on the path, because
``launch/pretrain.py`` would otherwise shadow the package ``pretrain``."""

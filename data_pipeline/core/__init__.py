"""Shared by all packages: errors, files, settings, command line, progress, the hub."""

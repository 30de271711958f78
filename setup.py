"""Kept so that ``python setup.py`` and older tools find the project; everything is in pyproject.toml."""

from setuptools import setup

setup()

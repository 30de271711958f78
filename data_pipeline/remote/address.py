"""Addresses of remote folders. Apart from what reads them, because settings are checked before anything is loaded."""

import re
from pathlib import Path


def is_remote(place: str | Path) -> bool:
    """Whether a corpus's place is the address of a remote folder, such as s3://bucket/wiki."""
    return "://" in str(place)


def show_address(url: str) -> str:
    """Returns the address as messages show it: without a name and password of the user."""
    return re.sub(r"(?<=://)[^/@]*@", "", url)

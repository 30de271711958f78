"""Versions of installed packages."""

from importlib.metadata import PackageNotFoundError, version


def find_version(package: str) -> str | None:
    """Returns the version of a package; None where it runs from its source alone, or is absent."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None

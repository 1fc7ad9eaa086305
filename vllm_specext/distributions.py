"""Installed packages, by the names that they are installed under."""

from importlib import metadata


def installed(name: str) -> str | None:
    """The version of what is installed as ``name``, ``None`` where nothing is."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

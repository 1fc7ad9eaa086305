"""Files and folders that a command writes to, tried before its work begins."""

import os
from pathlib import Path

from vllm_specext.errors import ConfigurationError


def check_folder(option: str, path: Path) -> None:
    """Make the folder ``path``, and make and remove a file in it. Errors name the user's ``option``."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        trial = path / f".vllm-specext-{os.getpid()}"
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise refusal(option, path, error) from None


def check_new_folder(option: str, path: Path) -> None:
    """Refuse a ``path`` that is there, unless it is an empty folder. Nothing is made. Errors name the user's
    ``option``."""
    try:
        if any(path.iterdir()):
            raise ConfigurationError(
                f"{option} is {str(path)!r}, which is not empty; it has to be a new or empty folder."
            )
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise refusal(option, path, FileExistsError()) from None
    except OSError as error:
        raise refusal(option, path, error) from None


def check_file(option: str, path: Path) -> None:
    """Make and remove the file ``path``. A file that exists stays as it is. Errors name the user's ``option``."""
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if path.is_file():
            path.open("ab").close()
        elif path.exists():  # a pipe or a device: opening it may wait, or end what reads from it
            if not os.access(path, os.W_OK):
                raise PermissionError(None, "Permission denied")
        else:
            path.open("xb").close()
            path.unlink()
    except OSError as error:
        raise refusal(option, path, error) from None


def refusal(option: str, path: Path, error: OSError | ValueError) -> ConfigurationError:
    """The sentence for a file or folder that could not be written to."""
    if isinstance(error, FileExistsError):
        why = "it is a file, and has to be a folder"
    elif isinstance(error, FileNotFoundError) and not path.parent.is_dir():
        why = f"there is no folder {str(path.parent)!r}"
    else:
        why = getattr(error, "strerror", None) or str(error)
    return ConfigurationError(f"{option} is {str(path)!r}, which cannot be written: {why}.")

"""Where a drafter's files are: a folder, or a hub id that is fetched."""

import os
from collections.abc import Sequence
from pathlib import Path

from vllm_specext.errors import ConfigurationError

HEAD = ("config.json", "model.safetensors", "pytorch_model.bin")
"""Files of a drafter that is a part of a model."""

LANGUAGE_MODEL = ("*.json", "*.safetensors", "*.model", "*.tiktoken", "*.txt", "*.jinja")
"""Files of a language model, with its tokenizer."""


KEY = "speculative-config key 'model'"
"""What errors call the place of a drafter, unless it comes from elsewhere."""


def check_place(model: str, role: str = KEY) -> Path:
    """``model`` as a path. Refuse what is neither a folder nor could be a hub id; nothing is fetched. ``role`` names it
    in errors."""
    path = Path(os.path.expanduser(model))
    if not os.path.isdir(path) and (is_path(model) or model.count("/") != 1):
        raise ConfigurationError(f"{role} is {model!r}, which is neither a directory nor a hub id (owner/name).")
    return path


def check_config(folder: Path) -> None:
    """Refuse a ``config.json`` that vLLM would stumble over; a folder without one may have another format's."""
    if os.path.isfile(folder / "config.json"):
        from vllm_specext.methods.checkpoints import read_config  # which loads torch

        read_config(folder)


def is_path(model: str) -> bool:
    """Whether ``model`` is spelled so that it can only be a path."""
    return model.startswith(("/", "./", "../", "~"))


def drafter_directory(model: str, revision: str | None, files: Sequence[str] = HEAD, role: str = KEY) -> Path:
    """The folder of ``model``, which is fetched if it is a hub id; ``ConfigurationError`` where it cannot be had.
    ``role`` names it in errors."""
    path = check_place(model, role)
    if os.path.isdir(path):
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(files)))
    except Exception as error:  # the hub client raises many kinds; each means that the drafter cannot be had
        raise ConfigurationError(
            f"{role} is {model!r}, which is no directory and cannot be fetched from the hub ({type(error).__name__})."
        ) from None


def is_hub_refusal(error: BaseException) -> bool:
    """Whether the hub's client says that a model cannot be had, there being none or no way to it."""
    from huggingface_hub import errors as hub

    return isinstance(error, hub.HFValidationError | hub.RepositoryNotFoundError | hub.LocalEntryNotFoundError)

"""Where a drafter's files are: a folder, or a hub id that is fetched."""

from collections.abc import Sequence
from pathlib import Path

from vllm_specext.errors import ConfigurationError

HEAD = ("config.json", "model.safetensors", "pytorch_model.bin")
"""Files of a drafter that is a part of a model."""

LANGUAGE_MODEL = ("*.json", "*.safetensors", "*.model", "*.tiktoken", "*.txt", "*.jinja")
"""Of a model with a tokenizer of its own."""


def drafter_directory(model: str, revision: str | None, files: Sequence[str] = HEAD) -> Path:
    """The folder of the speculative-config key ``model``; ``ConfigurationError`` where it cannot be had."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or model.startswith(("./", "../", "~")) or model.count("/") != 1:
        raise ConfigurationError(
            f"speculative-config key 'model' is {model!r}, which is neither a directory nor a hub id (owner/name)."
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(files)))
    except Exception as error:  # the hub client raises many kinds; each means that the drafter cannot be had
        raise ConfigurationError(
            f"speculative-config key 'model' is {model!r}, which is no directory and cannot be fetched from the hub "
            f"({type(error).__name__})."
        ) from None

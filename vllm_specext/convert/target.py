"""The model that a drafter drafts for, as far as a drafter's ``config.json`` names it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import read_config
from vllm_specext.methods.source import drafter_directory

ROLE = "--target"


@dataclass(frozen=True)
class Target:
    name: str
    """A hub id, or an absolute path: vLLM looks for a relative one in the directory in which it is started."""
    architectures: tuple[str, ...]
    hidden_size: int | None
    vocab_size: int | None
    """``None`` where ``config.json`` does not say."""


def read_target(model: str) -> Target:
    """The ``config.json`` of a folder or, fetched, of a hub id. Raises ``ConfigurationError``."""
    folder = drafter_directory(model, None, ("config.json",), ROLE)
    config = read_config(folder)
    if config.get("speculators_config") is not None:
        raise ConfigurationError(
            f"{ROLE} is {model!r}, which is itself a drafter (its config.json has speculators_config); it must be the "
            "model that is served."
        )
    is_folder = Path(model).expanduser().is_dir()
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"{folder / 'config.json'}: architectures is {names!r}; a target has to name its architecture."
        )
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    return Target(
        name=str(folder.resolve()) if is_folder else model,
        architectures=tuple(names),
        hidden_size=_size(text, "hidden_size"),
        vocab_size=_size(text, "vocab_size"),
    )


def check(target: Target, hidden_size: int, vocab_size: int) -> None:
    """Refuse a drafter for a target with other sizes. Raises ``ConfigurationError``."""
    for what, own, theirs in (
        ("hidden_size", hidden_size, target.hidden_size),
        ("vocab_size", vocab_size, target.vocab_size),
    ):
        if theirs not in (None, own):
            raise ConfigurationError(
                f"{ROLE} is {target.name!r}, whose {what} is {theirs}; the drafter was made for a target with {own}."
            )


def _size(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if type(value) is int else None

"""The file from which an interrupted training goes on: written as a whole or not at all, and without code in it."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vllm_specext.errors import ConfigurationError
from vllm_specext.whole_files import whole


def save_state(path: Path, state: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Replace ``path`` by ``state``, and by the ``settings`` that a training has to have to go on from it."""
    with whole(path) as part, part.open("wb") as file:
        torch.save({**state, "settings": json.dumps(settings)}, file)


def load_state(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Read the state that `save_state` wrote. A file that cannot be read, or that was written with other ``settings``,
    is refused with ``ConfigurationError``."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        before = json.loads(state.pop("settings"))
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"{path} is not the state of a training ({type(error).__name__}); expected a file that this trainer wrote."
        ) from error
    now = json.loads(json.dumps(settings))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise ConfigurationError(
                f"{path} was written by a training with {key} {before.get(key)}, but {key} is {now.get(key)} now; "
                "expected the same, or no file, to begin anew."
            )
    return dict(state)

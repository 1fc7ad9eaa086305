"""A drafter that is served by its own name, ``vllm serve DRAFTER``: its ``config.json`` names target and method.

The keys are those of the library speculators, which vLLM reads too. They are checked here as far as possible without
loading vLLM and without fetching anything.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.source import is_path
from vllm_specext.options.base import MAX_DRAFT_TOKENS
from vllm_specext.options.stock import StockDrafterOptions
from vllm_specext.registry import METHODS
from vllm_specext.speculative_config import keys, short

AS_TREES = {
    called: name
    for name, method in METHODS.items()
    if issubclass(method.options, StockDrafterOptions)
    for called in method.options.speculators_types
}
"""Our method for each type of checkpoint that vLLM would draft chains with, whatever method the user asks for."""

VERIFIER = "speculators_config.verifier.name_or_path"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Proposal(_Strict):
    speculative_tokens: int = Field(ge=1, le=MAX_DRAFT_TOKENS)


class _Verifier(_Strict):
    name_or_path: str = Field(min_length=1)


class _Speculators(_Strict):
    proposal_methods: Annotated[list[_Proposal], Field(min_length=1)]
    verifier: _Verifier


class _Config(_Strict):
    """The keys that vLLM insists on. A ``config.json`` has others besides."""

    speculators_config: _Speculators
    speculators_model_type: str
    transformer_layer_config: dict[str, Any]


@dataclass(frozen=True)
class Served:
    """What ``vllm serve DRAFTER`` stands for."""

    target: str
    """A folder or a hub id."""
    speculative: dict[str, Any]
    """The keys of ``--speculative-config``, with the user's."""


def served_keys(method: str, target: str) -> dict[str, Any]:
    """The keys with which a drafter's ``config.json`` lets it be served by its own name, with ``method``'s default
    number of drafted tokens. ``target`` is a hub id or a folder; a relative one is seen from the drafter's folder."""
    tokens = METHODS[method].options.model_fields["num_speculative_tokens"].default
    return {
        "speculators_model_type": method,
        "speculators_config": {
            "proposal_methods": [{"speculative_tokens": tokens}],
            "verifier": {"name_or_path": target},
        },
        "transformer_layer_config": {},  # vLLM insists on it; the drafter's sizes stand beside it
    }


def write(folder: Path, method: str, target: str) -> None:
    """Add ``served_keys`` to the ``config.json`` of the drafter in ``folder``."""
    from vllm_specext.methods.checkpoints import read_config  # which loads torch

    config = read_config(folder) | served_keys(method, target)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def of_folder(model: str, given: Any) -> Served | None:
    """``resolve`` for a ``model`` that is a folder with a ``config.json``, else ``None``."""
    folder = Path(model)
    if not os.path.isfile(folder / "config.json"):
        return None
    from vllm_specext.methods.checkpoints import read_config

    return resolve(model, read_config(folder), given)


def resolve(model: str, config: Mapping[str, Any], given: Any) -> Served | None:
    """What to serve in the place of ``model``, whose ``config.json`` is ``config``, when the user's
    ``--speculative-config`` is ``given``. ``None`` leaves it to vLLM: ``model`` is no drafter with such keys, or none
    of our methods is named.

    Raises ``ConfigurationError`` if the keys are wrong, the user contradicts them, or the target is not there.
    """
    if config.get("speculators_config") is None:
        return None
    place = f"{model}/config.json"
    kind = config.get("speculators_model_type")
    asked = given.get("method") if isinstance(given, Mapping) else None
    if not any(isinstance(name, str) and name in METHODS for name in (kind, asked)):
        return None
    users = {} if given is None else keys(given)
    method = _method(place, kind, asked)
    if (other := users.get("model")) is not None and not _same(other, model):
        raise ConfigurationError(
            f"speculative-config key 'model' is {short(repr(other))}, but the model to serve is itself a drafter, "
            f"{model!r}: leave the key out, or serve the target."
        )
    read = _read(place, config)
    # With a type of vLLM's, the number in the file is the length of a chain.
    tokens = {"num_speculative_tokens": read.proposal_methods[0].speculative_tokens} if method == kind else {}
    target = _locate(model, place, read.verifier.name_or_path)
    return Served(target, {**tokens, **users, "method": method, "model": model})


def refuse_drafter(model: str, target: str, config: Mapping[str, Any]) -> None:
    """Refuse a ``target`` of the drafter ``model`` whose ``config.json`` says that it is a drafter as well."""
    if config.get("speculators_config") is not None:
        raise ConfigurationError(
            f"{model}/config.json: {VERIFIER} is {target!r}, which is itself a drafter (its config.json has "
            "speculators_config); it must be the target."
        )


def _method(place: str, kind: Any, asked: str | None) -> str:
    """The method for a checkpoint of the type ``kind`` when the user has ``asked`` for one. One of the two is ours."""
    if asked not in (None, kind) and not (isinstance(kind, str) and AS_TREES.get(kind) == asked):
        raise ConfigurationError(
            f"{place}: speculators_model_type is {short(repr(kind))}, but speculative-config key 'method' is "
            f"{asked!r}: leave the key out, or serve the target with this drafter as key 'model'."
        )
    method: str = kind if asked is None else asked
    drafter = METHODS[method].options.model_fields.get("model")
    if drafter is None:
        raise ConfigurationError(
            f"{place}: speculators_model_type is {method!r}, a method that has no drafter: serve the target with it."
        )
    return method


def _read(place: str, config: Mapping[str, Any]) -> _Speculators:
    try:
        return _Config.model_validate(config).speculators_config
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise ConfigurationError(f"{place} lacks {key}, without which a drafter cannot be served.") from None
        message = first["msg"][0].lower() + first["msg"][1:]
        raise ConfigurationError(f"{place}: {key} is {short(repr(first['input']))}, but {message}.") from None


def _locate(model: str, place: str, name: str) -> str:
    """Where the target ``name`` is. A relative path is first looked up from the drafter's folder, so that it is the
    same from everywhere, then as vLLM does: from the current directory, or on the hub."""
    seen = os.path.expanduser(name)
    if os.path.isdir(model) and not os.path.isabs(seen) and os.path.exists(beside := os.path.join(model, seen)):
        found = os.path.realpath(beside)
    elif os.path.exists(seen):
        found = seen
    elif "://" not in name and (is_path(name) or name.count("/") > 1):
        raise ConfigurationError(
            f"{place}: {VERIFIER} is {short(repr(name))}, which is neither there nor a hub id (owner/name)."
        )
    else:
        return name
    if os.path.isfile(os.path.join(found, "config.json")):
        from vllm_specext.methods.checkpoints import read_config

        refuse_drafter(model, name, read_config(Path(found)))
    return found


def _same(given: Any, model: str) -> bool:
    return isinstance(given, str) and os.path.realpath(os.path.expanduser(given)) == os.path.realpath(model)

"""The recipes by method and name, and those from TOML files, changed key by key."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vllm_specext.errors import ConfigurationError
from vllm_specext.speculative_config import short
from vllm_specext.training.choices import Trained
from vllm_specext.training.recipes import griffin, moa
from vllm_specext.training.recipes.block import DFlashRecipe, DSparkRecipe
from vllm_specext.training.recipes.eagle3 import Eagle3Recipe
from vllm_specext.training.recipes.griffin import GriffinRecipe
from vllm_specext.training.recipes.moa import MoARecipe
from vllm_specext.training.recipes.mtp import MtpRecipe
from vllm_specext.training.recipes.staged import StagedKeys
from vllm_specext.training.recipes.values import checked, json_or_text

LARGEST_FILE = 2**20
"""The most bytes of a recipe's file; real ones have a few hundred."""


class Recipes(NamedTuple):
    """Those of a method."""

    keys: type[StagedKeys]
    """What they may set; the defaults are the recipe ``ours``."""
    released: Mapping[str, Any] | None = None
    """What the one that the method's authors released sets otherwise."""

    @property
    def named(self) -> dict[str, Mapping[str, Any]]:
        """Each by its name, as far as it differs from the defaults."""
        return {"ours": {}} | ({} if self.released is None else {"released": self.released})


RECIPES: dict[Trained, Recipes] = {
    "griffin": Recipes(GriffinRecipe, griffin.RELEASED),
    "eagle3": Recipes(Eagle3Recipe),
    "dflash": Recipes(DFlashRecipe),
    "dspark": Recipes(DSparkRecipe),
    "mtp": Recipes(MtpRecipe),
    "moa": Recipes(MoARecipe, moa.RELEASED),
}


def recipe_of(method: Trained, values: Mapping[str, Any]) -> StagedKeys:
    """``values`` as a recipe of ``method``, or a sentence about the first that is wrong."""
    return checked(RECIPES[method].keys, values, "the recipe's key")


def read_recipe(method: Trained, name: str, changes: Sequence[str]) -> StagedKeys:
    """The recipe ``name`` of ``method``, or of the TOML file of that name, with ``changes``, each ``KEY=VALUE``."""
    named = RECIPES[method].named
    if name in named:
        values = dict(named[name])
    elif name.endswith(".toml"):
        values = _read_toml(Path(name))
    else:
        raise ConfigurationError(
            f"--recipe is {short(repr(name))}, but must be {' or '.join(map(repr, named))} or a file whose name ends "
            f"with .toml, for method {method!r}."
        )
    for change in changes:
        key, equals, text = change.partition("=")
        if not (key and equals):
            raise ConfigurationError(f"--set is {short(repr(change))}, but must be KEY=VALUE, such as packs=8.")
        values[key] = json_or_text(text)
    return recipe_of(method, values)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise ConfigurationError(f"--recipe is {str(path)!r}, which has more than {LARGEST_FILE} bytes.")
        return tomllib.loads(content.decode())
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ConfigurationError(f"--recipe is {str(path)!r}, which cannot be read: {why}.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        raise ConfigurationError(f"--recipe is {str(path)!r}, which is not TOML.") from None

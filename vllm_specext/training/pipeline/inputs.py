"""What is checked of a run's inputs beside the settings themselves, before anything is loaded."""

from pathlib import Path

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.source import drafter_directory
from vllm_specext.methods.stock.checkpoint import FILES
from vllm_specext.training.choices import Trained
from vllm_specext.training.data.sources import rows_of_all
from vllm_specext.training.data.template import load_template
from vllm_specext.training.log import check_trackers
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.settings import RunSettings
from vllm_specext.training.pipeline.target import TargetModel
from vllm_specext.training.recipes.staged import StagedKeys


def check_inputs(settings: RunSettings, target: TargetModel, processes: int) -> None:
    """Raise ``ConfigurationError`` for data that are not there, template flags that there are none of, and packs and
    rows that cannot be."""
    rows_of_all(settings.data)  # reads none yet: neither a file nor the hub
    load_template(settings.target, settings.template_flags)
    check_trackers(settings.log)
    recipe = settings.recipe
    recipe.packs_of_each(processes)
    if settings.max_length > recipe.tokens_per_step:
        raise ConfigurationError(
            f"the recipe's key 'tokens_per_step' is {recipe.tokens_per_step}, but rows have up to "
            f"{settings.max_length} tokens (--max-length); expected at least as many."
        )
    if settings.max_length < (least := recipe.chain + 4):
        raise ConfigurationError(
            f"--max-length is {settings.max_length}, but drafters are measured by chains of {recipe.chain} tokens, "
            f"which come after a prompt and an answer; at least {least} are needed."
        )


def init_folder(name: str) -> Path:
    """Of ``--init``, which is fetched if it is a hub id."""
    return drafter_directory(name, None, FILES, role="--init")


def begun_with(method: Trained, recipe: StagedKeys, init: str | None, target: TargetModel) -> StagedKeys:
    """The ``recipe``, as it is for the drafter that is begun with. ``ConfigurationError`` where that cannot be."""
    if init is None:
        TRAINABLE[method].check_new(target, complete=False)
        return recipe
    folder = init_folder(init)
    TRAINABLE[method].check_init(folder, target)
    return recipe.beginning_with(TRAINABLE[method].kept(folder, target))

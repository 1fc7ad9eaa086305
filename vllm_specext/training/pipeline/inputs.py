"""What is checked of a run's inputs beside the settings themselves, before anything is loaded."""

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.source import drafter_directory
from vllm_specext.training.data.sources import rows_of_all
from vllm_specext.training.data.template import load_template
from vllm_specext.training.log import check_trackers
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.settings import RunSettings
from vllm_specext.training.pipeline.target import TargetModel


def check_inputs(settings: RunSettings, target: TargetModel, processes: int) -> None:
    """Raise ``ConfigurationError`` for data that are not there, template flags that there are none of, a drafter to
    begin with that is another target's or that the recipe would have otherwise, and packs that cannot be."""
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
    if settings.init is not None:
        recipe.check_begun()
        TRAINABLE[settings.method].check_init(drafter_directory(settings.init, None, role="--init"), target)

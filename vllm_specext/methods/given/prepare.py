"""What drafting from predictions needs before vLLM builds its configuration: nothing but its own keys."""

from vllm_specext.methods.prepared import Prepared
from vllm_specext.options.given import GivenOptions
from vllm_specext.refusals import Launch


def prepare(options: GivenOptions, launch: Launch) -> Prepared:
    """There is no drafter that could be wrong for the target."""
    included = {"num_speculative_tokens", "num_speculative_tokens_per_batch_size"}
    return Prepared(options.model_dump(include=included, exclude_none=True))

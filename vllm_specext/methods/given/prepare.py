"""What drafting from predictions needs before vLLM builds its configuration: nothing but its own keys."""

from vllm_specext.methods.prepared import Prepared
from vllm_specext.options.given import GivenOptions
from vllm_specext.refusals import Launch


def prepare(options: GivenOptions, launch: Launch) -> Prepared:
    """There is no drafter that could be wrong for the target."""
    return Prepared(options.for_vllm())

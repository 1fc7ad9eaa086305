"""The engine that answers and captures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm_specext.registry import CAPTURE
from vllm_specext.vllm_process import users_error

if TYPE_CHECKING:
    from vllm import LLM

FEATURE_WRITER = "vllm_specext.methods.capture.worker.FeatureWriter"


def capturing_llm(
    target: str,
    max_length: int,
    conversations: int,
    aux_layers: Sequence[int] | None = None,
    feature_dtype: str = "bfloat16",
    **arguments: Any,
) -> "LLM":
    """vLLM with ``target``, which keeps the states of the rows of ``conversations``, in ``feature_dtype``.

    ``max_length`` is the most tokens of a row. ``aux_layers`` are those whose states the drafter reads,
    ``arguments`` are further ones of ``vllm.LLM``. Raises ``ConfigurationError`` for a target that cannot be captured.
    """
    from vllm import LLM

    from vllm_specext.plugin import register

    register()  # also where no entry point announces the package
    speculative = {
        "method": CAPTURE.name,
        # Those of rows that wait to be written, too; and while a turn is computed, the states of the turn before, whose
        # text it has too, are still there.
        "capture_tokens": 2 * conversations * max_length,
        "feature_dtype": feature_dtype,
        "aux_layers": None if aux_layers is None else list(aux_layers),
    }
    try:
        return LLM(
            model=target,
            # A row that is given in whole has a token generated after it, which nobody reads.
            max_model_len=max_length + 1,
            enable_prefix_caching=False,
            worker_extension_cls=FEATURE_WRITER,
            speculative_config=speculative,
            **arguments,
        )
    except Exception as error:
        if ours := users_error(error, target):
            raise ours from None
        raise

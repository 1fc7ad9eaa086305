"""Which keys a request may have in ``SamplingParams.extra_args``, the ``vllm_xargs`` of the OpenAI API.

vLLM takes any key there and ignores those that nobody reads, so that a misspelt switch would have no effect, without a
message.
"""

from difflib import get_close_matches
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from vllm_specext.engine.client_trees import reads_client_trees
from vllm_specext.engine.predictions import reads_predictions
from vllm_specext.engine.requests import CLIENT_TREE, PREDICTION, SWITCH, has_custom_processors

VLLMS = ("session_id", "kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode")
"""All that vLLM reads with the targets that our methods have."""

SIMILAR = 0.85
"""The least ratio of ``difflib`` that counts as a misspelling. Swapped, missing, doubled or added letters give more,
and other words less."""


def check_keys(params: SamplingParams, vllm_config: Any) -> None:
    """Raise ``VLLMValidationError`` for a key that nothing reads.

    Custom logits processors and custom schedulers may read keys of their own. Where there are any, only what looks like
    a misspelling of our keys is refused.
    """
    config = vllm_config.speculative_config
    read = {SWITCH: True, PREDICTION: reads_predictions(config), CLIENT_TREE: reads_client_trees(config)}
    ours = [key for key, is_read in read.items() if is_read]
    known = (*ours, *VLLMS)
    for key in params.extra_args or {}:
        if key in known:
            continue
        if get_close_matches(str(key).lower(), ours, cutoff=SIMILAR) or not _has_other_readers(vllm_config):
            raise VLLMValidationError(
                f"{key!r} is an unknown key of 'vllm_xargs' ('extra_args'); known are {', '.join(known)}.",
                parameter="extra_args",
                value=key,
            )


def _has_other_readers(vllm_config: Any) -> bool:
    return vllm_config.scheduler_config.scheduler_cls is not None or has_custom_processors(vllm_config.model_config)

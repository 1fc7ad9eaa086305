"""Pages of recurrent states as small as plain decoding has them."""

from collections.abc import Callable
from copy import copy
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap
from vllm_specext.engine.config import is_ours


def keep_no_room_for_drafts() -> None:
    """Have vLLM, which sizes the blocks of all layers after the target is loaded, do so without drafts."""
    wrap(type(current_platform), "_align_hybrid_block_size", without_drafts)


@replaces(
    "vllm.platforms.interface.Platform._align_hybrid_block_size",
    name="pages of recurrent states",
    why="vLLM's states have room for the convolution's inputs of all drafted rows, which trees keep elsewhere",
    how="computed without drafts; blocks of attention layers, which are as large as a state, get smaller, too",
    upstream="none known",
    until="vLLM verifies trees with one state for each request",
    signature="vllm_config backend_cls",
)
def without_drafts(original: Callable[..., None]) -> Callable[..., None]:
    def _align_hybrid_block_size(vllm_config: VllmConfig, backend_cls: Any) -> None:
        if is_ours(vllm_config.speculative_config):
            own = copy(vllm_config)
            own.speculative_config = None
            vllm_config = own
        original(vllm_config, backend_cls)

    return _align_hybrid_block_size

"""Which rows of a step take the path that decodes, in layers with multi-head latent attention (MLA).

vLLM decides by the number of a request's rows, and by what its backend can do with several. Here a layout says it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap
from vllm_specext.engine.verification.layout import TreeLayout

_verified: list[tuple[int, int] | None] = [None]
"""Requests and rows at the beginning of the step whose metadata are being built, if a layout says which decode."""


@contextmanager
def verifying(layout: TreeLayout | None, batch: InputBatch, padded: bool) -> Iterator[None]:
    """Have the rows of ``layout``, the first ones of ``batch``, decode, while metadata are built. Where the step is
    ``padded`` to the size of a CUDA graph, it has no others."""
    if layout is None:
        _verified.append(None)
    elif padded:
        _verified.append((batch.num_reqs_after_padding, batch.num_tokens_after_padding))
    else:
        _verified.append((layout.requests, layout.rows))
    try:
        yield
    finally:
        _verified.pop()


def divide_by_drafts() -> None:
    """Replace vLLM's way to divide a step."""
    from vllm.model_executor.layers.attention import mla_attention

    wrap(mla_attention, "split_decodes_and_prefills", _split)


@replaces(
    "vllm.model_executor.layers.attention.mla_attention.split_decodes_and_prefills",
    name="rows with latent attention that decode",
    why="trees differ in size, and vLLM leaves requests of different lengths, or of several rows, to the prompts' path",
    how="wrapped: in a step that verifies drafts, all requests past their prompts decode and others do not",
    upstream="none: vLLM's drafts are chains",
    until="vLLM verifies trees whose shape differs by request",
    signature="common_attn_metadata decode_threshold require_uniform treat_short_extends_as_decodes",
)
def _split(original: Callable[..., tuple[int, int, int, int]]) -> Callable[..., tuple[int, int, int, int]]:
    def split_decodes_and_prefills(common_attn_metadata: Any, *args: Any, **kwargs: Any) -> tuple[int, int, int, int]:
        verified = _verified[-1]
        if verified is None:
            return original(common_attn_metadata, *args, **kwargs)
        requests, rows = verified
        return (
            requests,
            common_attn_metadata.num_reqs - requests,
            rows,
            common_attn_metadata.num_actual_tokens - rows,
        )

    return split_decodes_and_prefills

"""Target-layer inference: the target's last layers, frozen, over the drafter's feature.

The feature stands for the residual stream that enters the first of them. For verified tokens they read the target's
own keys and values; for drafted tokens those that they make of the drafter's features, which verification throws away.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from vllm_specext.methods.layers import KV, RMSNorm, Rotary
from vllm_specext.methods.moa.checkpoint import LayerShape
from vllm_specext.methods.moa.model import DecoderLayer


class TargetLayers(nn.Module):
    """Layers and final norm under the names that they have in the ``model`` of Llama, Mistral, Qwen2 and Qwen3."""

    def __init__(self, shapes: Sequence[LayerShape], rms_norm_eps: float, rotary: Rotary) -> None:
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(shape, rms_norm_eps, rotary) for shape in shapes])
        self.norm = RMSNorm(shapes[-1].width, rms_norm_eps)

    def forward(
        self, features: Tensor, position_ids: Tensor, mask: Tensor | None, pasts: Sequence[KV]
    ) -> tuple[Tensor, list[KV]]:
        """``features`` ``[B, T, E]`` -> the input of ``lm_head`` ``[B, T, E]``, and each layer's keys and values.

        ``pasts`` are the keys and values of each layer before: verified, then drafted. ``mask`` bool ``[B or 1, 1, T,
        past + T]``.
        """
        kvs = []
        for layer, past in zip(self.layers, pasts, strict=True):
            features, kv = layer(features, position_ids, mask, past)
            kvs.append(kv)
        return self.norm(features), kvs

"""Scales of a DFlash drafter's embeddings and logits, which z-lab's code knows and vLLM's class of DFlash does not.

z-lab's drafters read the target's embeddings as the target does. Gemma's targets multiply them by a constant. The
drafters of such targets also cap their logits. Without either a drafter is served, and less of what it drafts is
accepted. Speculators' drafters are trained on the rows of the embedding as they are.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.drafting.target import language_model_of
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.block.keys import Keys
from vllm_specext.methods.stock.config import Drafter


@dataclass(frozen=True)
class Scales:
    """Of the names that they have in ``config.json``."""

    input_embedding_scale: float = 1.0
    """What embeddings are multiplied by."""
    output_multiplier: float = 1.0
    """What logits are multiplied by, before they are capped."""
    final_logit_softcapping: float | None = None
    """What bounds the logits, by ``tanh``; ``None``: nothing."""
    reads_as_target: bool = False
    """Whether embeddings are multiplied as the target does it, too."""

    def overrides(self) -> dict[str, Any]:
        """The configuration in which `scales_in` finds them."""
        return {"draft_scales": asdict(self)}


def scales_of(drafter: Drafter) -> Scales:
    """What a drafter's ``config.json`` says. Raises ``ConfigurationError``."""
    keys = Keys(drafter)
    reads_as_target = drafter.raw.get("speculators_model_type") not in ("dflash", "dflash2")
    if drafter.class_name == "DFlash2Qwen3ForCausalLM":
        return Scales(reads_as_target=reads_as_target)  # vLLM's class reads the others
    is_dflash = drafter.class_name == "DFlashQwen3ForCausalLM"
    for key in ("input_embedding_scale", "output_multiplier", "final_logit_softcapping") if not is_dflash else ():
        if keys[key] is not None:
            raise ConfigurationError(
                f"{drafter.place}: {keys.name(key)} is {keys[key]!r}; it is supported for drafters of DFlash alone."
            )
    return Scales(
        keys.number("input_embedding_scale", 1.0),
        keys.number("output_multiplier", 1.0),
        keys.number("final_logit_softcapping", 1.0) if keys["final_logit_softcapping"] else None,
        is_dflash and reads_as_target,
    )


def scales_in(config: Any) -> Scales:
    """Those that a prepared drafter's ``config`` has."""
    return Scales(**config.draft_scales)


@replaces(
    "vllm.model_executor.models.qwen3_dflash.DFlashQwen3Model.embed_tokens",
    name="embeddings of DFlash drafters",
    why="drafters of Gemma's targets read embeddings that are multiplied by a constant, which vLLM's class leaves out",
    how="set to a module around it on a drafter that has such a scale; the target's embedding stays as it is",
    upstream="vllm#41703",
    until="vLLM's class of DFlash scales its embeddings",
    kind="set",
)
@replaces(
    "vllm.model_executor.layers.logits_processor.LogitsProcessor.scale",
    name="the scale of a DFlash drafter's logits",
    why="vLLM's class of DFlash knows no output_multiplier",
    how="multiplied on the drafter's own processor",
    upstream="none; vLLM's class of DFlash2 reads it",
    until="vLLM's class of DFlash reads output_multiplier",
    kind="set",
)
@replaces(
    "vllm.model_executor.layers.logits_processor.LogitsProcessor.soft_cap",
    name="the cap of a DFlash drafter's logits",
    why="vLLM's class of DFlash knows no final_logit_softcapping, and trees need the drafter's probabilities",
    how="set on the processor of a drafter that has one",
    upstream="vllm#41703",
    until="vLLM's class of DFlash reads final_logit_softcapping",
    kind="set",
)
def scale(model: Any, target: Any, scales: Scales) -> None:
    """Have a ``model`` of vLLM's class scale its embeddings and its logits. The ``target``'s stay as they are."""
    factor = torch.tensor(scales.input_embedding_scale)
    language_model = language_model_of(target)
    inner = getattr(language_model, "model", language_model)
    embedding = getattr(inner, "embed_tokens", None)
    embedding = getattr(embedding, "base_layer", embedding)  # vLLM shares it without the adapters of requests
    if scales.reads_as_target and model.model.embed_tokens is embedding:
        factor = getattr(inner, "normalizer", 1) * factor
    if factor != 1:
        model.model.embed_tokens = ScaledEmbedding(model.model.embed_tokens, factor)
    # vLLM's processor caps first and multiplies afterwards.
    model.logits_processor.scale *= scales.output_multiplier
    if scales.final_logit_softcapping is not None:
        model.logits_processor.soft_cap = scales.final_logit_softcapping / scales.output_multiplier


class ScaledEmbedding(nn.Module):
    """An ``embedding`` whose rows are multiplied by one number, ``factor``."""

    factor: Tensor

    def __init__(self, embedding: nn.Module, factor: Tensor) -> None:
        super().__init__()
        self.embedding = embedding
        weight = next(embedding.parameters())
        self.register_buffer("factor", factor.to(weight.device), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Embeddings ``[T, d]`` of tokens ``[T]``."""
        scaled: Tensor = self.embedding(ids) * self.factor
        return scaled

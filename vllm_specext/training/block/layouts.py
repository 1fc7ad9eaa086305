"""How the released DFlash and DSpark drafters are laid out, as far as they are ones that are trained here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PLAIN: dict[str, tuple[Any, ...]] = {
    "model_type": ("qwen3",),
    "hidden_act": ("silu", None),
    "attention_bias": (False, None),
    "use_sliding_window": (False, None),
    "draft_vocab_size": (None,),
    "target_hidden_size": (None,),
    "quantization_config": (None,),
    "use_aux_hidden_state": (True, None),
    **dict.fromkeys(("is_causal", "causal", "add_swa_attention_sink_bias"), (False, None)),
    **dict.fromkeys(("attention_sink_bias", "final_logit_softcapping"), (False, None)),
    **dict.fromkeys(("input_embedding_scale", "output_multiplier", "logit_scale"), (1, 1.0, None)),
}
"""Keys, at the top or in the section, that say that a drafter is another one than ours, with the values that do not."""
OWN = ("mask_token_id", "target_layer_ids")
"""The keys of the section."""


@dataclass(frozen=True)
class Layout:
    """How the released drafters of a method are laid out."""

    title: str
    architecture: str
    section: str | None
    """The key of the object that has ``OWN``; ``None``: they are at the top."""
    plain: Mapping[str, tuple[Any, ...]]
    """Further keys like ``PLAIN``."""
    embeds_as_target: bool
    """Whether a server multiplies the drafter's embeddings by what the target multiplies its own by."""

    def name(self, key: str) -> str:
        """Of one of ``OWN``, as a message has it."""
        return key if self.section is None else f"{self.section}.{key}"


DFLASH = Layout(
    "DFlash", "DFlashDraftModel", "dflash_config", {"sample_from_anchor": (False, None)}, embeds_as_target=True
)
DSPARK = Layout(
    "DSpark",
    "Qwen3DSparkModel",
    None,
    {
        "sample_from_anchor": (True, None),
        "markov_head_type": ("vanilla", None),
        "enable_confidence_head": (True, False, None),
        "confidence_head_with_markov": (True, None),
    },
    embeds_as_target=False,
)

"""How targets name the tensors of their multi-token prediction module, and what differs between modules."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    layer: str
    """With which the names of its layer's tensors begin."""
    fc: str
    """The projection before the layer."""
    of_embedding: str
    of_hidden: str
    """The norms before the projection."""
    last: str
    """The norm after the layer. The head reads what it gives, and so does the module in its next pass."""
    hidden_first: bool
    """Whether the projection reads the hidden state before the embedding."""
    sees_first_token: bool
    """Whether the embedding at position 0 is read, and not zeros."""
    one_more: bool
    """Whether norms multiply by one more than their weights."""
    share: float
    """The part of each head that is turned, where the configuration does not say it."""
    qkv_bias: bool
    gated: bool
    """Whether attention's output is multiplied by gates, which the file has beside the queries of each head, and
    queries and keys go through norms."""


MIMO = Layout(
    layer="model.mtp_layers.0.",
    fc="model.mtp_layers.0.input_proj",
    of_embedding="model.mtp_layers.0.token_layernorm",
    of_hidden="model.mtp_layers.0.hidden_layernorm",
    last="model.mtp_layers.0.final_layernorm",
    hidden_first=True,
    sees_first_token=False,
    one_more=False,
    share=1.0,
    qkv_bias=True,
    gated=False,
)
QWEN = Layout(
    layer="mtp.layers.0.",
    fc="mtp.fc",
    of_embedding="mtp.pre_fc_norm_embedding",
    of_hidden="mtp.pre_fc_norm_hidden",
    last="mtp.norm",
    hidden_first=False,
    sees_first_token=True,
    one_more=True,
    share=0.25,
    qkv_bias=False,
    gated=True,
)
DENSE = {"MiMoForCausalLM": MIMO, "Qwen3_5ForCausalLM": QWEN, "Qwen3_5ForConditionalGeneration": QWEN}
WITH_EXPERTS = {
    "Qwen3NextForCausalLM": QWEN,
    "Qwen3_5MoeForCausalLM": QWEN,
    "Qwen3_5MoeForConditionalGeneration": QWEN,
}
LAYOUTS = DENSE | WITH_EXPERTS
"""By the target's architecture."""

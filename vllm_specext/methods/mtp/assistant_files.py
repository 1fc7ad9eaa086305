"""Whether a checkpoint is the assistant of a Gemma 4 target."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import Shapes, load_tensor, read_config, tensor_headers
from vllm_specext.methods.stock.checkpoint import TOKEN_ORDERING, check_checkpoint, meaning_of_any, weight_files
from vllm_specext.methods.stock.config import MAX_LAYERS, MAX_REASON, configuration
from vllm_specext.refusals import Launch

TYPE = "gemma4_assistant"


@dataclass(frozen=True)
class AssistantShape:
    """The parameters of vLLM's class, by transformers' ``config`` of the checkpoint."""

    config: Any

    @property
    def kind(self) -> str:
        return "assistant"

    @property
    def text(self) -> Any:
        return self.config.get_text_config()

    @property
    def vocab_size(self) -> int:
        return int(self.text.vocab_size)

    def required(self) -> Shapes:
        d, h = self.text.hidden_size, self.config.backbone_hidden_size
        shapes: Shapes = {
            "pre_projection.weight": (d, 2 * h),
            "post_projection.weight": (h, d),
            "model.embed_tokens.weight": (self.vocab_size, d),
            "model.norm.weight": (d,),
        }
        for layer in range(self.text.num_hidden_layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in self._layer(layer).items()}
        if self.config.use_ordered_embeddings:
            shapes["masked_embedding.centroids.weight"] = (self.config.num_centroids, d)
            shapes[TOKEN_ORDERING] = (self.vocab_size,)
        return shapes

    def optional(self) -> Shapes:
        return {"lm_head.weight": (self.vocab_size, self.text.hidden_size)}

    def meaning(self, name: str) -> str | None:
        return meaning_of_any(name)

    def _layer(self, layer: int) -> Shapes:
        d, mlp, head = self.text.hidden_size, self.text.intermediate_size, self.text.per_layer_config[layer].head_dim
        rows = self.text.num_attention_heads * head
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        shapes: Shapes = {f"{name}_layernorm.weight": (d,) for name in norms} | {
            "layer_scalar": (1,),
            "self_attn.q_norm.weight": (head,),
            "self_attn.q_proj.weight": (rows, d),
            "self_attn.o_proj.weight": (d, rows),
            "mlp.gate_proj.weight": (mlp, d),
            "mlp.up_proj.weight": (mlp, d),
            "mlp.down_proj.weight": (d, mlp),
        }
        if self.text.attention_bias:
            shapes |= {"self_attn.q_proj.bias": (rows,), "self_attn.o_proj.bias": (d,)}
        return shapes


def check_assistant(directory: Path, launch: Launch) -> None:
    """Raises ``ConfigurationError`` where vLLM could not load it, or it could not read this target."""
    place, target = directory / "config.json", launch.model
    kind = read_config(directory).get("model_type")
    if kind != TYPE:
        raise ConfigurationError(f"{place}: model_type is {kind!r}; an assistant's is {TYPE!r}.")
    shape = AssistantShape(configuration(directory))
    try:
        text = shape.text
        layers = text.num_hidden_layers
        own = {"backbone_hidden_size": shape.config.backbone_hidden_size, "vocab_size": shape.vocab_size}
    except Exception as error:  # whatever a wrong value leads to
        reason = " ".join(str(error).split())[:MAX_REASON].rstrip(". ")
        raise ConfigurationError(
            f"{place} is not a configuration that vLLM reads: {type(error).__name__} {reason}."
        ) from error
    wanted = {"backbone_hidden_size": target.get_hidden_size(), "vocab_size": target.get_vocab_size()}
    for key, number in wanted.items():
        if own[key] != number:
            raise ConfigurationError(f"{place}: {key} is {own[key]!r} but the target has {number}.")
    if not 1 <= layers <= MAX_LAYERS:
        raise ConfigurationError(f"{place}: num_hidden_layers is {layers!r}; allowed are 1 to {MAX_LAYERS}.")
    known = _kinds_with_cache(target.hf_text_config)
    if unknown := [each for each in text.layer_types if each not in known]:
        raise ConfigurationError(
            f"{place}: layer_types has {unknown[0]!r}, but the target's layers with keys and values of their own are "
            f"{' or '.join(sorted(known))}."
        )
    check_checkpoint(directory, shape)
    if shape.config.use_ordered_embeddings:
        _check_ordering(directory, shape)


def _kinds_with_cache(text: Any) -> set[str]:
    """Kinds of the target's layers that do not read others' keys and values themselves."""
    return set(text.layer_types[: text.num_hidden_layers - (getattr(text, "num_kv_shared_layers", 0) or 0)])


def _check_ordering(directory: Path, shape: AssistantShape) -> None:
    """Every pass indexes the vocabulary with it."""
    clusters, chosen = shape.config.num_centroids, shape.config.centroid_intermediate_top_k
    place = directory / "config.json"
    if shape.vocab_size % clusters:
        raise ConfigurationError(
            f"{place}: num_centroids is {clusters}, which vocab_size {shape.vocab_size} is no multiple of."
        )
    if not 1 <= chosen <= clusters:
        raise ConfigurationError(f"{place}: centroid_intermediate_top_k is {chosen!r}; allowed are 1 to {clusters}.")
    (holder,) = (file for file in weight_files(directory) if TOKEN_ORDERING in tensor_headers(file))
    tokens = load_tensor(holder, TOKEN_ORDERING)
    if tokens.is_floating_point() or not 0 <= int(tokens.min()) <= int(tokens.max()) < shape.vocab_size:
        raise ConfigurationError(f"{holder}: tensor {TOKEN_ORDERING} has to hold tokens below {shape.vocab_size}.")

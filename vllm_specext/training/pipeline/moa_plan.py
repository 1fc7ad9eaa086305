"""What training a MoA drafter takes, and the targets that it cannot be trained for, by the target's configuration."""

import math

from vllm_specext.architectures import LLAMA_LIKE
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import read_rotary
from vllm_specext.methods.moa.checkpoint import LSA, ROPE_KINDS, LayerShape, MoAShape
from vllm_specext.training.pipeline.method import Sizes
from vllm_specext.training.pipeline.target import TargetModel
from vllm_specext.training.pipeline.target_ends import plain_numbers
from vllm_specext.training.recipes.moa import MoARecipe


def sizes(target: TargetModel, recipe: MoARecipe) -> Sizes:
    widths = shape(target, recipe)
    across_layers = 2 * target.layers * widths.kv_width
    size = 2 if recipe.bfloat16 else 4
    return Sizes(
        trained=_count(widths),
        kept=2 * (12 * target.hidden_size + 3 * widths.self_attention.mlp_size) + across_layers,
        frozen=size * _parameters(target),
        batch=size * ((target.layers + recipe.target_layer_inference) * widths.kv_width + 2 * target.hidden_size)
        + 4 * target.hidden_size,
    )


def operations(target: TargetModel, recipe: MoARecipe) -> tuple[float, ...]:
    """The target once, forward; LSA in every layer of it, forward twice; the drafter's logits."""
    widths = shape(target, recipe)
    across = widths.layer_self_attention
    lsa = 0 if across is None else sum(map(math.prod, across.tensor_shapes(LSA).values()))
    logits = 4.0 * target.vocab_size * target.hidden_size
    return (2.0 * _parameters(target) + 6.0 * (_count(widths) - lsa) + 8.0 * target.layers * lsa + logits,)


def shape(target: TargetModel, recipe: MoARecipe) -> MoAShape:
    """Of a new drafter; the biases that some targets' attention has are left out.

    Raises ``ConfigurationError`` for positions that a drafter cannot have, and for layers that cannot be run alone.
    """
    _check_layers(target, recipe.target_layer_inference)
    numbers = plain_numbers(target)
    rotary = read_rotary(target.folder, target.config, ROPE_KINDS, numbers.rope_theta)
    d, width = target.hidden_size, kv_width(target)
    layer = LayerShape(d, target.heads, target.kv_heads, target.head_dim, recipe.mlp_size or target.intermediate_size)
    lsa_head_dim = width // (2 * target.heads) * 2
    lsa = LayerShape(width, target.heads, target.kv_heads, lsa_head_dim, lsa_mlp_size(target, recipe))
    return MoAShape(
        hidden_size=d,
        kv_width=width,
        self_attention=layer,
        cross_attention=layer,
        layer_self_attention=lsa if recipe.lsa else None,
        vocab_size=target.vocab_size,
        rms_norm_eps=numbers.rms_norm_eps,
        rope_theta=rotary.theta,
        rope_scaling=rotary.scaling,
        max_position_embeddings=target.max_length,
        target_layer_inference=recipe.target_layer_inference,
        num_target_layers=target.layers,
    )


def kv_width(target: TargetModel) -> int:
    """Keys and values of one token in one layer."""
    return 2 * target.kv_heads * target.head_dim


def lsa_mlp_size(target: TargetModel, recipe: MoARecipe) -> int:
    return recipe.lsa_mlp_size or kv_width(target)


def _check_layers(target: TargetModel, count: int) -> None:
    if count > target.layers:
        raise ConfigurationError(
            f"the recipe's key 'target_layer_inference' is {count}, but the target has {target.layers} layers; at most "
            "as many are allowed."
        )
    found = target.config.get("architectures") or [None]
    if count and found[0] not in LLAMA_LIKE:
        raise ConfigurationError(
            f"the recipe's key 'target_layer_inference' is {count}, but the target is a {found[0]}, whose last layers "
            f"cannot be run alone; those of {', '.join(LLAMA_LIKE)} can, and 0 works with others."
        )


def _count(widths: MoAShape) -> int:
    return sum(map(math.prod, widths.tensor_shapes().values()))


def _parameters(target: TargetModel) -> int:
    """Those in its files, or, where they were not fetched, those of a dense Llama with its widths."""
    if target.parameters is not None:
        return target.parameters
    d, size = target.hidden_size, target.head_dim
    layer = 2 * d * size * (target.heads + target.kv_heads) + 3 * d * target.intermediate_size
    return 2 * target.vocab_size * d + target.layers * layer

"""MoA's training: one pass over each batch, with the text in blocks of random length (``moa_blocks.py``).

Embedding, head and the last layers of target-layer inference are the target's and stay as they are; its keys and values
are taken as the batches come. The same seeds give the same drafter.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm

from vllm_specext.methods.moa.checkpoint import LayerShape, MoAShape, write_checkpoint
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.methods.moa.target_layers import TargetLayers, two_key_sets
from vllm_specext.training.moa_blocks import last_verified, memory_mask, sample_boundaries, token_mask
from vllm_specext.training.moa_losses import Losses, moa_losses
from vllm_specext.training.moa_target import TargetRows, target_rotary
from vllm_specext.training.optimization import OptimizerName, linear_schedule, make_optimizers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOG_EVERY = 50
"""Steps."""


@dataclass(frozen=True)
class Recipe:
    """How to train. The defaults are the paper's, with batches of 32 sequences and 6 500 of them in an epoch."""

    steps: int = 195_000
    learning_rate: float = 6e-4
    final_learning_rate: float = 3e-5
    warmup_steps: int = 50
    """At most the whole training."""
    decay_steps: int = 6_500
    """Where the learning rate, falling on a straight line, reaches the final one, at which it stays."""
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    optimizer: OptimizerName = "adamw"
    """Published: AdamW. Muon learns far more in few steps."""
    muon_factor: float = 5.0
    """Muon's learning rate as a multiple of AdamW's."""
    drafted: tuple[int, int] = (5, 13)
    """Fewest and most positions of a block after its boundary: drafting steps that are trained for."""
    staircase: float = 0.5
    """The share of the training over which the probability that SA sees only its own block falls from one to zero."""
    count_boundaries: bool = True
    """Whether the losses count boundaries, which see keys and values that drafting would not have. Published: yes."""
    checkpoint_lsa: bool = True
    """Recompute LSA in the backward pass, which saves most of the memory."""
    compiled: bool = False
    bfloat16: bool = True
    seed: int = 0


def new_drafter(
    target: "PreTrainedModel",
    *,
    mlp_size: int,
    kv_heads: int,
    lsa_mlp_size: int,
    lsa_kv_heads: int,
    with_lsa: bool = True,
    target_layer_inference: int = 0,
    norm_weights: Literal["ones", "normal"] = "ones",
    seed: int = 0,
) -> MoADrafter:
    """An untrained drafter for ``target``. Matrices are drawn from N(0, 0.02), biases are zero.

    ``norm_weights`` ``normal`` draws those of the norms from the same distribution, as the official code does.
    """
    config = target.config
    attention = target.base_model.layers[0].self_attn
    qkv_bias = attention.q_proj.bias is not None
    heads, width, head_dim = config.num_attention_heads, config.hidden_size, attention.head_dim
    kv_width = 2 * config.num_key_value_heads * head_dim
    rotary = target_rotary(config)
    # The even number at or below the published ``kv_width / heads``, which need not be a whole one.
    lsa_head_dim = kv_width // (2 * heads) * 2
    lsa = LayerShape(kv_width, heads, lsa_kv_heads, lsa_head_dim, lsa_mlp_size, qkv_bias)
    shape = MoAShape(
        hidden_size=width,
        kv_width=kv_width,
        self_attention=LayerShape(width, heads, kv_heads, head_dim, mlp_size, qkv_bias),
        cross_attention=LayerShape(width, heads, kv_heads, head_dim, mlp_size),
        layer_self_attention=lsa if with_lsa else None,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=rotary.theta,
        rope_scaling=rotary.scaling,
        max_position_embeddings=config.max_position_embeddings,
        target_layer_inference=target_layer_inference,
        num_target_layers=config.num_hidden_layers,
    )
    model = MoADrafter(shape)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 or (norm_weights == "normal" and "norm" in name):
                parameter.normal_(0.0, 0.02, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
    return model


def train(
    model: MoADrafter,
    head: Tensor,
    last_layers: TargetLayers | None,
    batches: Iterator[TargetRows],
    out_dir: Path,
    recipe: Recipe,
    dtype: torch.dtype = torch.float32,
    resume: Path | None = None,
) -> list[dict[str, Any]]:
    """Train ``model`` in place on endless ``batches`` and write it to ``out_dir``, in ``dtype``.

    ``head`` ``[V, E]`` is the target's output matrix. Returns, and writes beside the checkpoint as ``training.json``, a
    list of dictionaries: step, and the losses averaged over the steps since the entry before. Checkpoint and log are
    written along with every entry; so is ``resume``, a file from which an interrupted training goes on, if it is there.
    """
    model.checkpoint_lsa = recipe.checkpoint_lsa
    trained = list(model.parameters())
    optimizers = make_optimizers(
        trained, recipe.optimizer, recipe.learning_rate, recipe.weight_decay, recipe.muon_factor
    )
    floor = recipe.final_learning_rate / recipe.learning_rate
    warmup = min(recipe.warmup_steps, recipe.steps)
    schedules = [linear_schedule(x, warmup, recipe.decay_steps, floor) for x in optimizers]
    first, log = 0, list[dict[str, Any]]()
    stateful: list[Any] = [model, *optimizers, *schedules]
    if resume is not None and resume.exists():
        state = torch.load(resume, weights_only=True)
        first, log = state["step"], state["log"]
        for part, saved in zip(stateful, state["parts"], strict=True):
            part.load_state_dict(saved)
    losses_of = torch.compile(step_losses) if recipe.compiled else step_losses
    recent: list[Tensor] = []
    bar = tqdm(range(first + 1, recipe.steps + 1), initial=first, total=recipe.steps, mininterval=5)
    generator = torch.Generator().manual_seed(recipe.seed + first)
    for step in bar:
        batch = next(batches)
        boundaries = sample_boundaries(batch.response, recipe.drafted, generator)
        alone = torch.rand(len(boundaries), generator=generator).to(head.device) < staircase(step, recipe)
        with torch.autocast(head.device.type, dtype=torch.bfloat16, enabled=recipe.bfloat16):
            losses = losses_of(model, head, last_layers, batch, boundaries, alone, recipe.count_boundaries)
            losses.total().backward()
        nn.utils.clip_grad_norm_(trained, recipe.clip_norm)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        recent.append(losses.terms())
        if step % LOG_EVERY == 0 or step == recipe.steps:
            log.append({"step": step, **_summary(recent)})
            bar.set_postfix(log[-1])
            recent.clear()
            write_checkpoint(out_dir, model, dtype)
            record = {"recipe": asdict(recipe), "log": log}
            (out_dir / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            if resume is not None:
                parts = [part.state_dict() for part in stateful]
                torch.save({"step": step, "log": log, "parts": parts}, resume)
    return log


def staircase(step: int, recipe: Recipe) -> float:
    """The probability, in this step, that SA sees only its own block."""
    return max(0.0, 1 - step / (recipe.staircase * recipe.steps)) if recipe.staircase else 0.0


def step_losses(
    model: MoADrafter,
    head: Tensor,
    last_layers: TargetLayers | None,
    batch: TargetRows,
    boundaries: Tensor,
    block_only: Tensor,
    count_boundaries: bool,
) -> Losses:
    """``boundaries`` ``[B, T]``; ``block_only`` ``[B]``: rows in which SA sees only its own block."""
    last = last_verified(boundaries)
    features = model(batch.embeddings, batch.kv, token_mask(last, block_only), memory_mask(last))
    counted = batch.response & (count_boundaries | ~boundaries)
    if last_layers is None:
        return moa_losses(features, batch.features, head, counted)
    position_ids = torch.arange(features.shape[1], device=features.device)[None]
    final, _ = last_layers(features, position_ids, two_key_sets(last), batch.last_kvs)
    return moa_losses(final, batch.features, head, counted, (features, batch.entry))


def _summary(recent: list[Tensor]) -> dict[str, float]:
    means = torch.stack(recent).mean(dim=0).tolist()
    return {name: round(value, 4) for name, value in zip(("token", "feature", "entry"), means)}  # noqa: B905

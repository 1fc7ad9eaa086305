"""What a training will take, told before it begins: bytes of features, memory, arithmetic and hours.

All of it is computed from the target's sizes and the settings; the formulas stand beside each figure. What is only
estimated says so. Nothing here has been measured on a GPU.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.split import MOST as MOST_HELD_OUT
from vllm_specext.training.logits import logits_of
from vllm_specext.training.pipeline.method import Sizes
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.over_features import LEARNT
from vllm_specext.training.pipeline.settings import RunSettings
from vllm_specext.training.pipeline.target import TargetModel
from vllm_specext.training.recipes.staged import StagedKeys
from vllm_specext.training.streaming.supply import ROOM
from vllm_specext.training.streaming.visits import BLOCK_TOKENS

FEATURE_BYTES = 2
"""Features are kept in bfloat16."""
SHARE_OF_PEAK = 0.35
"""The share of a GPU's arithmetic that hours are told for. A wish: no GPU has run this yet."""
PEAKS = {"A100": 312e12, "H100": 989e12}
"""Dense bfloat16 operations per second, as the vendor states."""
CHUNK = 1024
"""Positions whose logits live at the same time (``head_loss.py``)."""
GB = 1e9


@dataclass(frozen=True)
class Tokens:
    """How many are prepared."""

    rows: int | None
    stored: int | None
    """With features: prompts and answers. ``None`` where nothing bounds it."""
    learnt: int | None
    bound: str
    """What says so."""


@dataclass(frozen=True)
class Memory:
    """Bytes of a training process."""

    weights: int
    """Weights, gradients and AdamW's two moments, 4 bytes each."""
    frozen: int
    """What is the target's."""
    activations: int
    batches: int
    """What is made of the target for all packs of a step."""
    head: int
    """Logits of a chunk of positions in float32, at the most: the target's, the drafter's, their gradient, and the
    slope of a cap."""

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


@dataclass(frozen=True)
class Plan:
    captured: str | None
    """What is kept of the target for every token, if anything is."""
    in_memory: str
    """What of the target is in memory."""
    feature_bytes_per_token: int
    tokens: Tokens
    feature_bytes: int | None
    """On the disk at the same time."""
    streamed: bool
    """Whether the target computes features beside the training."""
    disk_free: int
    trained_parameters: int
    step_tokens: int
    """The most tokens of a step in one process."""
    memory: Memory
    operations_per_token: tuple[float, ...]
    """Of each stage, for a token in the loss."""
    target_operations_per_token: float | None
    steps: tuple[int, ...] | None
    """Of each stage; ``None`` where they follow from data that are not counted yet."""
    hours: dict[str, float] | None
    """Of training alone, by GPU."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "memory_bytes": self.memory.total, "share_of_peak": SHARE_OF_PEAK}


def make_plan(settings: RunSettings, target: TargetModel, rows: int | None, output: Path, processes: int = 1) -> Plan:
    """``rows`` are those in the data, where they could be counted; ``processes`` train together."""
    recipe, method = settings.recipe, TRAINABLE[settings.method]
    sizes = method.sizes(target, recipe)
    tokens = bounded(settings, rows)
    states = 0 if method.captured is None else 1 + len(method.layers(target) or ())
    per_token = states * target.hidden_size * FEATURE_BYTES
    tokens_there = streamed_tokens(settings, tokens.stored) if settings.stream else tokens.stored
    step_tokens = recipe.tokens_per_step
    operations = method.operations(target, recipe)
    steps = stage_steps(recipe, tokens.stored)
    return Plan(
        captured=method.captured,
        in_memory=method.frozen,
        feature_bytes_per_token=per_token,
        tokens=tokens,
        feature_bytes=None if tokens_there is None else tokens_there * per_token,
        streamed=settings.stream,
        disk_free=shutil.disk_usage(_existing(output)).free,
        trained_parameters=sizes.trained,
        step_tokens=step_tokens,
        memory=memory(sizes, target, recipe, recipe.packs_of_each(processes)),
        operations_per_token=operations,
        target_operations_per_token=None if target.parameters is None else 2.0 * target.parameters,
        steps=steps,
        hours=None if steps is None or tokens.stored is None else hours(recipe, operations, tokens, steps),
    )


def streamed_tokens(settings: RunSettings, stored: int | None) -> int:
    """Whose features are on the disk at the same time: those of some blocks, and of the rows that are held out."""
    most = ROOM * BLOCK_TOKENS + MOST_HELD_OUT * settings.max_length
    return most if stored is None else min(most, stored)


def bounded(settings: RunSettings, rows: int | None) -> Tokens:
    """The most tokens, by whichever of the settings and the data bounds them first."""
    count = min(filter(None, (rows, settings.samples)), default=None)
    by_rows = None if count is None else count * settings.max_length
    by_learnt = None if settings.tokens is None else int(settings.tokens / LEARNT)
    stored = min(filter(None, (by_rows, by_learnt)), default=None)
    if stored is None:
        return Tokens(None, None, None, "nothing: the data are not counted in advance")
    learnt = settings.tokens if stored == by_learnt else int(stored * LEARNT)
    bound = (
        "--tokens, prompts as long as answers"
        if stored == by_learnt
        else f"{count} rows of at most {settings.max_length} tokens, prompts as long as answers"
    )
    return Tokens(count, stored, learnt, bound)


def stage_steps(recipe: StagedKeys, tokens: int | None) -> tuple[int, ...] | None:
    """Optimizer steps of every stage over rows of so many ``tokens``, as if packs were full."""
    if recipe.steps is not None:
        return recipe.steps
    if tokens is None:
        return None
    return tuple(max(1, round(epochs * tokens / recipe.tokens_of_a_step)) for epochs in recipe.epochs)


def memory(sizes: Sizes, target: TargetModel, recipe: StagedKeys, packs: int) -> Memory:
    """Of a process that computes so many ``packs`` for a step. Activations are counted by the outputs of the drafter's
    matrices and norms that the backward pass needs."""
    size, step_tokens = 2 if recipe.bfloat16 else 4, recipe.tokens_per_step
    copies = sizes.trained * size if recipe.bfloat16 else 0
    logits = 3 + (logits_of(target.config).soft_cap is not None)
    return Memory(
        weights=16 * sizes.trained,
        frozen=sizes.frozen,
        activations=copies + step_tokens * recipe.most_passes * sizes.kept * size,
        batches=packs * step_tokens * sizes.batch,
        head=logits * min(CHUNK, step_tokens) * target.vocab_size * 4,
    )


def hours(recipe: StagedKeys, operations: Sequence[float], tokens: Tokens, steps: Sequence[int]) -> dict[str, float]:
    """On one GPU, at ``SHARE_OF_PEAK``."""
    assert tokens.stored is not None
    epochs = [count * recipe.tokens_of_a_step / tokens.stored for count in steps]
    total = sum(once * each * tokens.stored for once, each in zip(epochs, operations, strict=True))
    return {name: total / (peak * SHARE_OF_PEAK) / 3600 for name, peak in PEAKS.items()}


def refuse_small_disk(plan: Plan, output: Path, written: int = 0) -> None:
    """Refuse to begin what does not fit on the disk of ``output``, where ``written`` bytes of it are already."""
    if plan.feature_bytes is not None and plan.feature_bytes > plan.disk_free + written:
        raise ConfigurationError(
            f"--output is {str(output)!r}, where {plan.disk_free / GB:.1f} GB are free, but features of up to "
            f"{plan.tokens.stored} tokens take {plan.feature_bytes / GB:.1f} GB; fewer --samples or --tokens, a "
            "shorter --max-length, --stream or another disk is needed."
        )


def _existing(path: Path) -> Path:
    """The nearest folder that is there."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path

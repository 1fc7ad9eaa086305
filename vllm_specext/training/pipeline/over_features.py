"""What trainings share whose drafters read features of the target that were kept."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.packs import pack_order
from vllm_specext.training.pipeline.method import warmup_steps
from vllm_specext.training.pipeline.target import TargetModel
from vllm_specext.training.recipes.staged import StagedKeys
from vllm_specext.training.rows import RowSource
from vllm_specext.training.staged import StagedTraining

LEARNT = 0.5
"""The share of tokens that is assumed to be answers, where nothing says it."""

R = TypeVar("R", bound=StagedTraining)


def as_trained(keys: StagedKeys, steps: tuple[int, ...], recipe: type[R]) -> R:
    """The ``recipe`` of a trainer in so many ``steps`` of each stage, all else by ``keys``, which have the same
    names."""
    own: dict[str, Any] = {"steps_per_stage": steps, "warmup_steps": warmup_steps(keys, steps)}
    same = {field.name: getattr(keys, field.name) for field in fields(recipe) if field.name not in own}
    return recipe(**own, **same)


def packs_of(rows: RowSource, recipe: StagedKeys) -> int:
    """How many packs the ``rows`` fill in an epoch."""
    return len(pack_order(rows.lengths, rows.order(0), recipe.tokens_per_step))


def end_bytes(target: TargetModel, recipe: StagedKeys) -> int:
    """Of the target's embedding and head, in float32, and of the head in the type of the step's arithmetic."""
    return target.vocab_size * target.hidden_size * (4 + 4 + (2 if recipe.bfloat16 else 0))


def check_same(folder: Path, own: object, wanted: Mapping[str, Any]) -> None:
    """Refuse the drafter of ``--init`` in ``folder`` whose shape is ``own``, unless it has the ``wanted`` values."""
    for name, value in wanted.items():
        if (found := getattr(own, name)) != value:
            raise ConfigurationError(
                f"--init is {str(folder)!r}, a drafter with {name} {found}, but for this target it is {value}; they "
                "must be equal."
            )


def batch_bytes(target: TargetModel, more: int = 0) -> int:
    """Of a token, in float32: features to read and to reproduce, and ``more`` hidden states. A step's packs are there
    twice, because those of the next are made meanwhile."""
    return 2 * 4 * (2 + more) * target.hidden_size


def operations_by_stage(
    target: TargetModel, recipe: StagedKeys, trained: int, once: int = 0, own_head: int = 0, scored: float = 1
) -> tuple[float, ...]:
    """For each token: in each pass of a stage 6 for each of the ``trained`` numbers, of which ``once`` are applied
    in the first pass alone. For the share of them that is ``scored``, the target's logits once, 2·V·d, and in each pass
    the drafter's, forward and back to the features, 4·V·d, or 6 for each number of its ``own_head``."""
    head = target.vocab_size * target.hidden_size
    each = 6 * own_head if own_head else 4 * head
    return tuple(
        6.0 * once + passes * 6.0 * (trained - once) + scored * (2 * head + passes * each)
        for passes in recipe.passes_of_stages
    )


def scored_share(align: int) -> float:
    """The share of tokens that logits are made of: all with alignment, which asks what the drafter says of each."""
    return 1 if align else LEARNT

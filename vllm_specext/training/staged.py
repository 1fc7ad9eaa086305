"""How drafters are trained that read the target's features: in stages, of which the ``j``-th makes ``j`` passes over
each batch."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from torch import nn

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.optimization import OptimizerName, linear, make_optimizers
from vllm_specext.training.stages import Stage, Steps


@dataclass(frozen=True)
class StagedTraining:
    """What such trainings share. Where a default is not that of GRIFFIN's released checkpoints, their value is
    named."""

    steps_per_stage: tuple[int, ...] = (1000, 1000, 1000)
    """Optimizer steps of stages 1, 2, ...; one entry for each stage."""
    learning_rates: tuple[float, ...] = (5e-5, 3e-5, 3e-5)
    warmup_steps: int = 100
    """Steps of warm-up in each stage, at most the whole of it (released: 2000)."""
    schedule_steps: int | None = None
    """The step of a stage at which the linear decay reaches zero: the last one, unless given (released: 800 000, which
    no stage reached)."""
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    """The most that all gradients together may be, by their norm; ``None``: any."""
    optimizer: OptimizerName = "adamw"
    """Muon learns far more in few steps. Released: AdamW."""
    muon_factor: float = 5.0
    """Muon's learning rate as a multiple of AdamW's."""
    bfloat16: bool = False
    log_every: int = 50
    """Steps from one log entry, and state to go on from, to the next."""
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.learning_rates) != len(self.steps_per_stage):
            raise ConfigurationError(
                f"learning_rates has {len(self.learning_rates)} entries, but steps_per_stage has "
                f"{len(self.steps_per_stage)}; each stage needs one of both."
            )

    def clip(self, trained: Iterable[nn.Parameter]) -> None:
        """Make the gradients of ``trained`` as small as they may be."""
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(trained, self.clip_norm)

    def stages(self) -> list[Stage]:
        return [
            Stage(
                Steps(steps, self.log_every),
                partial(
                    make_optimizers,
                    name=self.optimizer,
                    rate=rate,
                    weight_decay=self.weight_decay,
                    muon_factor=self.muon_factor,
                ),
                linear(min(self.warmup_steps, steps), self.schedule_steps or steps),
                self.clip,
            )
            for steps, rate in zip(self.steps_per_stage, self.learning_rates, strict=True)
        ]

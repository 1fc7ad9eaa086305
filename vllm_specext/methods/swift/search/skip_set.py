"""Which sub-layers of the target a draft skips.

A sub-layer is the attention or the MLP of one decoder layer. The first and the last layer are never skipped, so a
target with ``L`` layers has ``n = 2 (L - 2)`` sub-layers to choose from. They are the search's variables: variable
``i`` below ``L - 2`` is the attention of layer ``i + 1``, and variable ``L - 2 + i`` is the MLP of the same layer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import floor

from vllm_specext.errors import ConfigurationError

MIN_LAYERS = 3
ATTENTION, MLP = "attention", "MLP"
SubLayer = tuple[str, int]
"""A sub-layer: its kind and the number of its layer."""


@dataclass(frozen=True)
class SkipSet:
    """The sub-layers that a draft skips, of a target with ``layers`` layers: the layers whose attention and those whose
    MLP it skips, each ascending."""

    layers: int
    attention: tuple[int, ...]
    mlp: tuple[int, ...]

    def __post_init__(self) -> None:
        check_depth(self.layers)
        for kind, skipped in ((ATTENTION, self.attention), (MLP, self.mlp)):
            if outside := [layer for layer in skipped if not 1 <= layer <= self.layers - 2]:
                raise ConfigurationError(
                    f"The skipped {kind} layers include {outside[0]}, but of a target with {self.layers} layers only "
                    f"1 to {self.layers - 2} can be skipped."
                )
            if list(skipped) != sorted(set(skipped)):
                raise ConfigurationError(
                    f"The skipped {kind} layers are {list(skipped)}, but must be ascending and distinct."
                )

    @classmethod
    def of(cls, layers: int, variables: Iterable[int]) -> "SkipSet":
        """The set that skips these variables."""
        check_depth(layers)
        inner = layers - 2
        chosen = sorted(set(variables))
        if chosen and not 0 <= chosen[0] <= chosen[-1] < 2 * inner:
            raise ValueError(f"variables {chosen} of {2 * inner}")
        return cls(
            layers,
            tuple(variable + 1 for variable in chosen if variable < inner),
            tuple(variable - inner + 1 for variable in chosen if variable >= inner),
        )

    @classmethod
    def uniform(cls, layers: int) -> "SkipSet":
        """The set that the search starts with: attention and MLP of every odd layer. That is about half of what can be
        skipped, whatever the ratio."""
        check_depth(layers)
        odd = tuple(range(1, layers - 1, 2))
        return cls(layers, odd, odd)

    @property
    def variables(self) -> tuple[int, ...]:
        """The variables that this set skips, ascending."""
        inner = self.layers - 2
        return tuple(layer - 1 for layer in self.attention) + tuple(inner + layer - 1 for layer in self.mlp)

    @cached_property
    def sub_layers(self) -> frozenset[SubLayer]:
        return frozenset([(ATTENTION, layer) for layer in self.attention] + [(MLP, layer) for layer in self.mlp])

    def __len__(self) -> int:
        return len(self.attention) + len(self.mlp)

    def __str__(self) -> str:
        return f"attention {_ranges(self.attention)}; MLP {_ranges(self.mlp)}"


def num_variables(layers: int) -> int:
    return 2 * (layers - 2)


def num_skipped(layers: int, ratio: float) -> int:
    """How many sub-layers each set of the search skips. Raises ``ConfigurationError`` where this ratio is
    impossible."""
    check_depth(layers)
    variables = num_variables(layers)
    # Ratios are decimal fractions: 0.29 of 100 is 29, which floating-point numbers miss.
    skipped = min(floor(variables * ratio + 1e-9), variables - 1) if 0 < ratio < 1 else 0
    if skipped == 0:
        raise ConfigurationError(
            f"speculative-config key 'swift_skip_ratio' is {ratio}, but must be below 1 and skip at least one of the "
            f"{variables} sub-layers that this target can go without, hence be at least {1 / variables:.4g}."
        )
    return skipped


def check_depth(layers: int) -> None:
    if layers < MIN_LAYERS:
        raise ConfigurationError(
            f"The target has {layers} layers, but SWIFT never skips the first and the last one and so needs at least "
            f"{MIN_LAYERS}."
        )


def _ranges(numbers: tuple[int, ...]) -> str:
    """``numbers`` as text: "1 3-5 8" for 1, 3, 4, 5, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) or "none"

"""A search as a picture: matchness over its steps, and the set it found, layer by layer."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vllm_specext.methods.swift.search.search import Kind, Step
from vllm_specext.methods.swift.search.skip_set import SkipSet

KEPT, SKIPPED, NEVER_SKIPPED = "tab:blue", "lightgrey", "tab:cyan"
CANDIDATES = {Kind.START: ("s", "black"), Kind.RANDOM: (".", "grey"), Kind.SUGGESTED: ("^", "tab:orange")}


def save_picture(path: Path, skipped: SkipSet, history: Sequence[Step]) -> None:
    """Draw to ``path``, in the format of its suffix."""
    figure = Figure(figsize=(max(7.0, 2 + skipped.layers / 5), 6), layout="constrained")
    steps, layers = figure.subplots(2, 1, height_ratios=[3, 1])
    draw_history(steps, history)
    draw_set(layers, skipped)
    figure.savefig(path, dpi=150)


def draw_history(axes: Axes, history: Sequence[Step]) -> None:
    for kind, (marker, color) in CANDIDATES.items():
        chosen = [step for step in history if step.kind is kind]
        if chosen:
            numbers, scores = [step.number for step in chosen], [step.score for step in chosen]
            axes.plot(numbers, scores, marker, color=color, label=f"candidate: {kind.value}")
    numbers, best = [step.number for step in history], [step.best for step in history]
    axes.step(numbers, best, where="post", color="tab:red", label="active set")
    axes.set(xlabel="step of the search", ylabel="matchness", ylim=(0, 1.02))
    axes.legend(loc="lower right")


def draw_set(axes: Axes, skipped: SkipSet) -> None:
    for row, (name, layers) in enumerate((("MLP", skipped.mlp), ("attention", skipped.attention))):
        colors = [SKIPPED if layer in layers else KEPT for layer in range(skipped.layers)]
        colors[0] = colors[-1] = NEVER_SKIPPED
        lefts = [layer - 0.45 for layer in range(skipped.layers)]
        axes.barh([row] * skipped.layers, 0.9, left=lefts, height=0.9, color=colors)
        axes.text(skipped.layers, row, f"{len(layers)} skipped", va="center")
        axes.text(-1, row, name, va="center", ha="right")
    axes.set(xlabel="layer", yticks=[], xlim=(-0.5, skipped.layers - 0.5))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title("kept (blue; never skipped: cyan) and skipped (grey) sub-layers", fontsize="medium")

"""``report.md`` and its figures: losses and acceptance while the drafter was trained, and what an engine accepted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vllm_specext.training.pipeline.folder import PLOTS, REPORT

DPI = 120
Log = Sequence[Mapping[str, Any]]


def write_report(folder: Path, log: Log, check: Mapping[str, Any], stats: Mapping[str, Any]) -> None:
    losses, acceptance = PLOTS
    loss_figure(log).savefig(folder / losses, dpi=DPI)
    acceptance_figure(log, check).savefig(folder / acceptance, dpi=DPI)
    (folder / REPORT).write_text(report(check, stats), encoding="utf-8")


def report(check: Mapping[str, Any], stats: Mapping[str, Any]) -> str:
    served, simulated = check["served"], check["simulated"]
    rows = zip(served["accepted_per_depth"], simulated["accepted_per_depth"], strict=True)
    losses, acceptance = PLOTS
    return "\n".join(
        [
            "# Report of a training",
            "",
            f"{stats['train']['rows']} rows with {stats['train']['loss_tokens']} tokens to learn, "
            f"{stats['valid']['rows']} rows held out.",
            "",
            f"![losses]({losses})",
            "",
            f"![acceptance]({acceptance})",
            "",
            "## What an engine accepted",
            "",
            f"{check['prompts']} held-out prompts, greedy, {check['dtype']}, chains of {check['chain']}: "
            f"{served['tokens_per_verification']:.2f} tokens per verification in "
            f"{served['verifications']} verifications. Tokens as in plain decoding: {check['identical']}.",
            "",
            "| depth | served | simulated on the same answers |",
            "|---|---|---|",
            *(f"| {depth} | {one:.3f} | {other:.3f} |" for depth, (one, other) in enumerate(rows, start=1)),
            "",
        ]
    )


def loss_figure(log: Log) -> Figure:
    """Each of the losses that the method has, a line for each pass, or, where all tokens are drafted in one, for each
    token; stages are told apart by grey lines."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    places = _places(log)
    known = {"token": "token loss, nats", "feature": "feature loss", "counted": "positions that count"}
    known |= {"accepted": "accepted of drawn tokens", "confidence": "confidence loss, nats"}
    names = {name: label for name, label in known.items() if any(name in entry for entry in log)}
    line = "token" if list(names) == ["token"] or "accepted" in names else "pass"
    for axes, (name, label) in zip(figure.subplots(1, len(names), squeeze=False)[0], names.items(), strict=True):
        losses = [_of_passes(entry, name) for entry in log]
        for number in range(max(map(len, losses))):
            points = [(x, own[number]) for x, own in zip(places, losses, strict=True) if len(own) > number]
            axes.plot(*zip(*points, strict=True), label=f"{line} {number + 1}", marker=".")
        _mark_stages(axes, log, places)
        axes.set_title(label, fontsize="medium")
        axes.set_xlabel("step")
        axes.set_ylim(bottom=0)
        if name in ("counted", "accepted"):
            axes.yaxis.set_major_formatter(PercentFormatter(1))
    figure.axes[0].legend(fontsize="small")
    return figure


def _of_passes(entry: Mapping[str, Any], name: str) -> Sequence[float]:
    """Methods with a single pass log a number."""
    found: Sequence[float] | float = entry.get(name, [])
    return [found] if isinstance(found, float) else found


def acceptance_figure(log: Log, check: Mapping[str, Any]) -> Figure:
    """Left, while training: the share of held-out verifications that accept a token at each depth. Right: the same
    for the drafter that was exported, on an engine and simulated on the same answers."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    evaluated = [(x, entry) for x, entry in zip(_places(log), log, strict=True) if "valid/tau_chain" in entry]
    for depth in range(1, check["chain"] + 1):
        points = [(x, entry[f"valid/accept/depth_{depth}"]) for x, entry in evaluated]
        left.plot(*zip(*points, strict=True), label=f"depth {depth}", marker=".")
    _mark_stages(left, log, _places(log))
    left.set_xlabel("step")
    left.set_title("accepted while training, held-out rows", fontsize="medium")
    many = check["chain"] > 8
    left.legend(fontsize="xx-small" if many else "small", ncols=4 if many else 2)
    for place, (name, label) in enumerate((("served", "on an engine"), ("simulated", "simulated"))):
        shares = check[name]["accepted_per_depth"]
        right.bar([depth + 0.4 * place - 0.2 for depth in range(1, len(shares) + 1)], shares, 0.38, label=label)
    right.set_xlabel("depth")
    right.set_title("accepted, the same answers", fontsize="medium")
    right.legend(fontsize="small")
    for axes in (left, right):
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    return figure


def _places(log: Log) -> list[int]:
    """Steps of all stages together."""
    places, before, stage, last = [], 0, None, 0
    for entry in log:
        if entry["stage"] != stage:
            before, stage = before + last, entry["stage"]
        last = entry["step"]
        places.append(before + last)
    return places


def _mark_stages(axes: Any, log: Log, places: Sequence[int]) -> None:
    for (entry, place), after in zip(zip(log, places, strict=True), log[1:], strict=False):
        if after["stage"] != entry["stage"]:
            axes.axvline(place, color="grey", linewidth=0.8)

"""A soak's memory, requests and cache over time."""

from pathlib import Path
from typing import Any

from matplotlib import pyplot


def plot(result: dict[str, Any], path: Path) -> None:
    samples = result["samples"]
    minutes = [sample["seconds"] / 60 for sample in samples]
    figure, (memory, load, cache) = pyplot.subplots(3, 1, figsize=(7, 7), sharex=True, layout="constrained")
    memory.plot(minutes, [sample["resident_mebibytes"] for sample in samples], label="all processes")
    for title in samples[0]["by_process"]:
        memory.plot(minutes, [sample["by_process"].get(title, 0) for sample in samples], label=title)
    memory.set(ylabel="resident MiB", ylim=(0, None))
    load.plot(minutes, [sample["running"] for sample in samples], label="running")
    load.plot(minutes, [sample["waiting"] for sample in samples], label="waiting")
    load.set(ylabel="requests")
    for axes in (memory, load):  # above the lines, which fill the axes
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False)
    cache.plot(minutes, [100 * sample["cache_usage"] for sample in samples])
    cache.set(ylabel="blocks in use, %", xlabel="minutes", ylim=(0, 105))
    figure.savefig(path, dpi=150)
    pyplot.close(figure)

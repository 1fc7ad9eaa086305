"""The documents' tables of SWIFT's search, from the files under ``benchmarks/results``."""

from collections.abc import Callable

from scripts.docs_benchmarks import read
from scripts.markdown import table


def sets() -> str:
    header = (
        "set",
        "skipped",
        "matchness",
        "tokens per verification",
        "x plain, by the paper's formula",
        "x plain, measured",
    )
    rows = []
    for row in read("swift_search.json")["with restarts"]["sets"]:
        measured = f"{row['measured_speedup']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f})"
        figures = [f"{row[key]:.2f}" for key in ("matchness", "tokens_per_verification", "expected_speedup")]
        rows.append((row["set"], row["skipped"], *figures, measured))
    return table(header, rows)


def stream() -> str:
    header = (
        "search",
        "text",
        "tokens per verification",
        "right tokens in the chains",
        "restarts so far",
        "set at the end",
    )
    rows = []
    for search, measured in read("swift_search.json").items():
        for phase in measured["phases"]:
            figures = f"{phase['tokens_per_verification']:.2f}", f"{phase['right_in_chains']:.3f}"
            rows.append(
                (
                    named(search),
                    phase["kind"],
                    *figures,
                    phase["restarts"],
                    phase["set"],
                )
            )
    return table(header, rows)


def cost() -> str:
    header = (
        "search",
        "steps with an evaluation",
        "share of the time: evaluation",
        "search beside it",
        "slowest step beside it",
    )
    rows = []
    for search, measured in read("swift_search.json").items():
        spent = measured["cost"]
        shares = (f"{spent[key]:.1%}" for key in ("share_of_time_evaluation", "share_of_time_search_beside_evaluation"))
        slowest = f"{spent['largest_step_beside_evaluation_relative_to_median']:.2f} x median"
        rows.append((named(search), spent["steps_with_evaluation"], *shares, slowest))
    return table(header, rows)


def named(name: str) -> str:
    return "without restarts" if name == "without" else name


TABLES: dict[str, Callable[[], str]] = {
    "benchmark swift sets": sets,
    "benchmark swift stream": stream,
    "benchmark swift cost": cost,
}

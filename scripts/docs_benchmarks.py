"""The documents' tables of measurements, from the files under ``benchmarks/results``."""

import json
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ablation import report, runs
from benchmarks.ablation.rows import ROWS
from benchmarks.soak.verdict import compared
from benchmarks.soak.verdict import rows as figures_of_soak
from scripts.markdown import code, table
from vllm_specext.bench.configurations import PLAIN
from vllm_specext.bench.summary import LATENCIES, cells

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "cpu"


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def tokens_per_verification() -> str:
    """By the draft's size and drafter, with the intervals."""
    found = {
        (row["draft"], row["drafter"]): f"{row['tokens_per_verification']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        for row in read("tokens_per_verification.json")["rows"]
    }
    drafters = {
        "eagle3": "EAGLE-3, vLLM's `eagle3`",
        "eagle3-tree": "EAGLE-3, `eagle3-tree`",
        "griffin": "GRIFFIN, `griffin`",
        "dflash": "DFlash, vLLM's `dflash`",
        "dflash-tree": "DFlash, `dflash-tree`",
        "draft-model-tree": "10 of 12 layers, `draft-model-tree`",
    }
    drafts = list(dict.fromkeys(draft for draft, _ in found))
    return table(
        ("draft", *drafters.values()), ([draft, *(found.get((draft, one), "") for one in drafters)] for draft in drafts)
    )


def tokens_in_short() -> str:
    """By drafter and the draft's size, our methods alone: vLLM's own chains are as long as ours."""
    found: dict[str, list[str]] = {}
    for row in read("tokens_per_verification.json")["rows"]:
        found.setdefault(row["drafter"], []).append(f"{row['tokens_per_verification']:.2f}")
    names = {
        "eagle3-tree": "EAGLE-3",
        "griffin": "GRIFFIN",
        "dflash-tree": "DFlash",
        "draft-model-tree": "a small model",
    }
    header = "tokens per pass of the target", "chain of 4", "tree of 8", "tree of 24", "tree of 59"
    return table(header, ([f"{names[key]}, {code(key)}", *found[key]] for key in names))


def draft_vocabulary() -> str:
    """By the tokens that the drafter scores and by drafter."""
    rows = read("draft_vocabulary.json")["rows"]
    drafters = list(dict.fromkeys(row["drafter"] for row in rows))
    whole = {row["drafter"]: row for row in rows if row["of_the_vocabulary"] == 1}
    lines: dict[int, list[str]] = {}
    for row in rows:
        size, own = row["draft_vocab_size"], row["tokens_per_verification"]
        share = f"{row['of_the_vocabulary']:.1%}", f"{row['of_the_counted_tokens']:.1%}"
        left = own / whole[row["drafter"]]["tokens_per_verification"]
        lines.setdefault(size, [str(size), *share]).append(f"{own:.2f} ({left:.0%})")
    header = "tokens scored", "of the vocabulary", "of the counted text", *map(code, drafters)
    return table(header, lines.values())


def float8_drafters() -> str:
    """By drafter and by what its weights are in."""
    told = read("float8_drafters.json")
    whole: dict[str, float] = {}
    lines = []
    for row in told["rows"]:
        own = row["tokens_per_verification"]
        left = own / whole.setdefault(row["drafter"], own)
        same = f"{row['same_tokens']} of {told['prompts']}"
        lines.append((code(row["drafter"]), row["weights"], f"{own:.2f} ({left:.1%})", same))
    return table(("drafter", "weights", "tokens per verification", "prompts with the same tokens"), lines)


def at_once(file: str) -> str:
    """A row for each method, depth and number of passes, a column for each number of drafted tokens."""
    lines: dict[tuple[Any, ...], dict[int, str]] = {}
    rows = read(file)["rows"]
    kinds = [kind for kind in ("depth", "passes") if kind in rows[0]]
    for row in rows:
        figure = f"{row['tokens_per_verification']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        lines.setdefault((code(row["method"]), *(row[kind] for kind in kinds)), {})[row["nodes"]] = figure
    sizes = sorted({nodes for found in lines.values() for nodes in found})
    header = "method", *kinds, *(f"{nodes} tokens" for nodes in sizes)
    return table(header, [(*kind, *(of.get(n, "") for n in sizes)) for kind, of in lines.items()])


def tokens_by_depth() -> str:
    header = "drafter", "draft", "levels", "candidates a level", "accepted at depth 1, 2, ..."
    rows = []
    for row in read("tokens_per_verification.json")["rows"]:
        depths = ", ".join(f"{share:.2f}" for share in row["accepted_per_depth"][: row["tree_depth"]])
        rows.append((f"`{row['drafter']}`", row["draft"], row["tree_depth"], row["tree_top_k"], depths))
    return table(header, rows)


def chosen_drafts() -> str:
    """What the scheduler chooses, beside every fixed number of drafted tokens."""
    header = (
        "method",
        "requests",
        "best fixed number",
        "chosen to best",
        "chosen to none",
        "first turn to none",
        "drafted per verification",
    )
    rows = []
    for path in sorted((RESULTS / "chosen").glob("*.json")):
        for row in read(f"chosen/{path.name}"):
            ratios = (f"{row[key]:.2f}" for key in ("chosen_to_best", "chosen_to_none", "first_to_none"))
            rows.append(
                (code(row["name"]), row["requests"], row["best"], *ratios, f"{row['drafted_per_verification']:.1f}")
            )
    return table(header, rows)


def beside_eagle3() -> str:
    """GRIFFIN's chains beside those of vLLM's EAGLE-3."""
    header = "drafts", "requests", "x EAGLE-3", "x plain", "tokens per verification", "drafted per verification"
    within = "{median:.2f} ({lowest:.2f} to {highest:.2f})".format
    rows = []
    for row in read("beside_eagle3.json"):
        if row["name"] != "plain":
            ratios = (within(**row[key]) for key in ("to_eagle3", "to_plain"))
            drafted = (f"{row[key]:.2f}" for key in ("tokens_per_verification", "drafted_per_verification"))
            rows.append((code(row["name"]), row["requests"], *ratios, *drafted))
    return table(header, rows)


def sweep() -> str:
    return table(*cells(read("sweep.json")["rows"], LATENCIES))


def acceptance() -> str:
    return table(*cells([row for row in read("acceptance.json")["rows"] if row["task"] == "all"]))


def drafters() -> str:
    """By drafter, with code and prose apart."""
    rows = [row for row in read("drafters/acceptance.json")["rows"] if row["method"] != PLAIN]
    tokens = {(row["method"], row["task"]): f"{row['spec_decode_acceptance_length']:.2f}" for row in rows}
    lines = []
    for row in rows:
        if row["task"] == "all":
            name = row["method"]
            depths = ", ".join(f"{share:.2f}" for share in row["spec_decode_per_position_acceptance_rates"])
            drafted = f"{row['nodes_per_verification']:.1f}"
            means = (tokens[name, task] for task in ("all", "code", "prose"))
            lines.append((name, drafted, *means, depths, yes(row["identical"])))
    header = (
        "method",
        "drafted",
        "tokens per verification",
        "code",
        "prose",
        "accepted at depth 1, 2, ...",
        "same tokens",
    )
    return table(header, lines)


def ablations() -> str:
    """By row, with the difference to the row before it that is the reference; rows that were not run say so."""
    return table(report.HEADER, report.lines(runs.read(RESULTS / "ablation", ROWS), ROWS))


def foreign() -> str:
    header = (
        "drafter",
        "tokens per verification",
        "bytes per verification",
        "x plain: 1 request",
        "4",
        "16",
        "identical",
    )
    rows = []
    for name, measured in read("foreign.json").items():
        loads = measured["rows"]
        assert [row["requests_at_once"] for row in loads] == [1, 4, 16]
        alone = loads[0]
        told = f"{alone['tokens_per_verification']:.2f}", f"{alone['bytes_per_verification']:.1f}"
        speedups = [f"{row['speedup']:.2f}" for row in loads]
        rows.append((name, *told, *speedups, yes(all(row["identical"] for row in loads))))
    return table(header, rows)


def foreign_time() -> str:
    """Where the time of SLEM's drafts goes."""
    profiled = {name: measured for name, measured in read("foreign.json").items() if measured["rows"][0]["ms_per_step"]}
    columns = [(name, row) for name, measured in profiled.items() for row in measured["rows"]]
    header = "ms of a step", *(f"{name}: {row['requests_at_once']}" for name, row in columns)
    parts = list(columns[0][1]["ms_per_step"])
    return table(header, ([part, *(f"{row['ms_per_step'][part]:.2f}" for _, row in columns)] for part in parts))


def step_profile() -> str:
    """The parts that take most, of steps of one request; the rest together."""
    found = {name: of["1"] for name, of in read("step_profile.json").items()}
    parts = list(dict.fromkeys(part for of in found.values() for part in of["milliseconds"]))
    rows: list[list[str]] = []
    for part in parts:
        times = [of["milliseconds"].get(part) for of in found.values()]
        rows.append([part, *("" if time is None else f"{time:.1f}" for time in times)])
    rows.append(["**all**", *(f"**{sum(of['milliseconds'].values()):.1f}**" for of in found.values())])
    rows.append(["tokens per step", *(f"{of['tokens_per_step']:.2f}" for of in found.values())])
    return table(("ms of a step", *found), rows)


def nodes_by_load() -> str:
    """Median speed relative to no nodes."""
    ratios: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for row in read("nodes/sweep.json")["rows"]:
        if "ratio_to_no_nodes" in row:
            own = ratios[row["method"], row["num_speculative_tokens"]]
            own[row["max_concurrency"]] = row["ratio_to_no_nodes"]
    loads = sorted({load for own in ratios.values() for load in own})
    header = "method", "nodes", *(f"{load} request{'s' if load > 1 else ''}" for load in loads)
    found = sorted(ratios, key=lambda size: (size[0] != "griffin", size))
    return table(header, ((*size, *(f"{ratios[size][load]:.2f}" for load in loads)) for size in found))


def simulated(name: str) -> str:
    return (RESULTS.parent / "simulated" / f"{name}.md").read_text(encoding="utf-8")


def cache_memory() -> str:
    header = "target", "method", "bytes a token: target", "drafter", "share", "origin"
    rows = []
    for row in read("cache_memory.json"):
        sizes = row["target_bytes_per_token"], row["drafter_bytes_per_token"], f"{row['drafter_share']:.1%}"
        rows.append((row["target"], row["drafter"], *sizes, row["origin"].partition(":")[0]))
    return table(header, rows)


def yes(value: bool) -> str:
    return "yes" if value else "**no**"


def predicted_answers() -> str:
    header = (
        "drafts",
        "prediction",
        "tokens per pass",
        "tokens per verification",
        "passes with drafts",
        "x without, processor time",
    )
    rows = []
    found = read("given_edits.json")
    drafts = {"given": "predictions", "griffin": "predictions, then GRIFFIN's trees"}
    for method, drafted in drafts.items():
        for row in found[method]["figures"]:
            low, _, high = row["speeds"]
            own = row["tokens_per_verification"]
            cost = f"{row['speed']:.2f} ({low:.2f} to {high:.2f})" if row["prediction"] != "none" else "1"
            share = f"{row['passes_with_drafts']:.1%}"
            each = f"{row['tokens_per_pass']:.2f}", "" if own is None else f"{own:.2f}"
            rows.append((drafted, row["prediction"], *each, share, cost))
    return table(header, rows)


def prompt_lookups() -> str:
    """A row for each kind of drafts, a column for each kind of prompts."""
    found: dict[str, dict[str, str]] = {}
    for row in read("prompt_lookups.json"):
        found.setdefault(row["drafts"], {})[f"{row['prompts']} ({row['count']})"] = (
            f"{row['tokens_per_verification']:.2f}"
        )
    (kinds,) = {tuple(of) for of in found.values()}
    return table(("tokens per verification", *kinds), [(drafts, *of.values()) for drafts, of in found.items()])


def structured_trees() -> str:
    """A row for each drafter and its drafts, a column for each structure."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in read("structured_trees.json"):
        kind = f"{row['structure']} ({row['count']})"
        lines.setdefault((row["drafter"], row["drafts"]), {})[kind] = f"{row['tokens_per_verification']:.2f}"
    (kinds,) = {tuple(of) for of in lines.values()}
    return table(("drafter", "drafts", *kinds), [(*drafts, *of.values()) for drafts, of in lines.items()])


def grammar_masks() -> str:
    rows = [
        (row["drafts"], f"{row['nodes_that_may_come']:.0f}", f"{row['median_us']:.0f}", f"{row['most_us']:.0f}")
        for row in read("grammar_masks.json")
    ]
    return table(("drafts", "nodes that may come", "µs, median", "µs, at the slowest place"), rows)


def block_trees() -> str:
    """A row for each drafter, a column for each number of drafted tokens."""
    lines: dict[str, dict[int, str]] = {}
    found = read("block_trees.json")
    for row in found["rows"]:
        figure = f"{row['tokens_per_verification']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        lines.setdefault(row["drafter"], {})[row["nodes"]] = figure
    (sizes,) = {tuple(of) for of in lines.values()}
    drafted = found["recipes"]["DSpark"]["block_size"]
    kinds = (f"{'chain' if nodes <= drafted else 'tree'} of {nodes}" for nodes in sizes)
    return table(("drafter", *kinds), [(drafter, *of.values()) for drafter, of in lines.items()])


def remote_links() -> str:
    header = (
        "server's time",
        "link",
        "drafter",
        "tokens per call",
        "calls per 100 tokens",
        "bytes per token",
        "tokens/s",
    )
    rows = []
    for row in read("remote.json")["links"]:
        told: tuple[str, ...] = ("", "", "")
        if "tokens_per_call" in row:
            told = f"{row['tokens_per_call']:.2f}", f"{row['calls_per_100']:.0f}", f"{row['bytes_per_token']:.0f}"
        rows.append((f"{row['token_ms']:g} ms", row["link"], row["drafter"], *told, f"{row['tokens_per_second']:.0f}"))
    return table(header, rows)


def remote_cuts() -> str:
    rows = [
        (str(row["cut"]), row["drafter"], f"{row['same']:.0%}", f"{row['nats']:.2f}")
        for row in read("remote.json")["cuts"]
    ]
    return table(("cut after", "who goes on", "the target's tokens", "nats"), rows)


def soak() -> str:
    return table(("what", "figure"), figures_of_soak(read("soak/griffin-tree.json")))


def soaks() -> str:
    """Every method's: what was compared, and memory and speed over time."""
    header = "method", "minutes", "compared", "different", "preemptions", "MiB by quarter", "tokens/s by quarter"
    rows = []
    for path in sorted((RESULTS / "soak").glob("*.json")):
        told = read(f"soak/{path.name}")
        memory, speed = (
            ", ".join(f"{figure:.0f}" for figure in told.get(key, ()))
            for key in ("memory_by_quarter", "tokens_per_second_by_quarter")
        )
        figures = f"{told['minutes']:g}", compared(told), len(told["differing"]), told["preemptions"], memory, speed
        rows.append((code(told["method"]), *figures))
    return table(header, rows)


TABLES: dict[str, Callable[[], str]] = {
    "benchmark remote links": remote_links,
    "benchmark remote cuts": remote_cuts,
    "benchmark tokens per verification": tokens_per_verification,
    "benchmark tokens in short": tokens_in_short,
    "benchmark tokens by depth": tokens_by_depth,
    "benchmark draft vocabulary": draft_vocabulary,
    "benchmark float8 drafters": float8_drafters,
    "benchmark p-eagle": partial(at_once, "peagle_trees.json"),
    "benchmark pard": partial(at_once, "pard_trees.json"),
    "benchmark chosen drafts": chosen_drafts,
    "benchmark beside eagle3": beside_eagle3,
    "benchmark sweep": sweep,
    "benchmark acceptance": acceptance,
    "benchmark drafters": drafters,
    "benchmark ablations": ablations,
    "benchmark foreign": foreign,
    "benchmark foreign time": foreign_time,
    "benchmark step profile": step_profile,
    "benchmark predicted answers": predicted_answers,
    "benchmark prompt lookup": prompt_lookups,
    "benchmark structured trees": structured_trees,
    "benchmark grammar masks": grammar_masks,
    "benchmark block trees": block_trees,
    "benchmark nodes by load": nodes_by_load,
    "benchmark simulated drafts": partial(simulated, "drafts"),
    "benchmark simulated traffic": partial(simulated, "traffic"),
    "benchmark simulated depths": partial(simulated, "depths"),
    "benchmark simulated passes": partial(simulated, "passes"),
    "benchmark cache memory": cache_memory,
    "benchmark soak": soak,
    "benchmark soaks": soaks,
}

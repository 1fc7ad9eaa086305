"""The documents' tables of which nodes trees have, from the files under ``benchmarks/results``."""

from collections.abc import Callable

from scripts.docs_benchmarks import read
from scripts.markdown import code, table


def calibrated() -> str:
    """Tokens per verification by temperature, with the drafter's probabilities as given and as learned."""
    found: dict[tuple[str, float], list[str]] = {}
    sizes = sorted({row["nodes"] for row in read("calibrated_trees.json")})
    for row in read("calibrated_trees.json"):
        given, learned = row["as_given"], row["learned"]
        found.setdefault((row["method"], row["temperature"]), []).append(f"{given:.2f}, {learned:.2f}")
    header = "method", "temperature", *(f"tree of {nodes}" for nodes in sizes)
    return table(header, ((code(method), f"{heat:g}", *cells) for (method, heat), cells in found.items()))


def depths() -> str:
    """Tokens per verification by temperature and depth."""
    found: dict[tuple[str, float, int], list[str]] = {}
    levels = sorted({row["depth"] for row in read("tree_depths.json")})
    for row in read("tree_depths.json"):
        key = row["method"], row["temperature"], row["nodes"]
        found.setdefault(key, []).append(f"{row['tokens_per_verification']:.2f}")
    header = "method", "temperature", "nodes", *(f"{depth} levels" for depth in levels)
    return table(header, ((code(method), f"{heat:g}", nodes, *cells) for (method, heat, nodes), cells in found.items()))


def pooled_nodes() -> str:
    """Tokens per verification of 16 requests, by who gets a step's nodes."""
    header = "method", "draft", "nodes for each request", "alike", "by confidence", "ratio"
    rows = [
        (code(row["method"]), row["draft"], row["nodes"], row["alike"], row["together"], f"{row['gain']:.2f}")
        for row in read("pooled_nodes.json")
        if row["requests"] == 16
    ]
    return table(header, rows)


TABLES: dict[str, Callable[[], str]] = {
    "benchmark calibrated trees": calibrated,
    "benchmark tree depths": depths,
    "benchmark pooled nodes": pooled_nodes,
}

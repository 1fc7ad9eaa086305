"""What a batch gains if a step's nodes go to the requests whose drafter is surest of them, and not to all alike.

    python -m benchmarks.pooled_nodes --output benchmarks/results/cpu

Each verification of a bundled drafter's trees is written down: the drafter's probability of every node, and which nodes
were accepted. Then batches are drawn from these verifications. Each has as many nodes as there would be with so many of
the best for every request; or the best of all requests together, by the probability of the path to a node. What either
accepts is counted from what was accepted. Nothing is timed. The same is done for chains, the path of best children.
Writes ``pooled_nodes.json``.
"""

import argparse
import json
import os
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.own_process import bundled_engine, in_own_process
from vllm_specext.measure.bundled import MAX_TOKENS, MODELS, bundled_prompts

NODES, DEPTH, TOP_K = 59, 6, 10
BATCHES = (4, 16, 64)
TREES, CHAINS = (4, 8, 16, 32), (1, 2, 3, 4)
DRAWN = 2000
"""Batches that are drawn for each figure."""


@dataclass(frozen=True)
class Verified:
    """A draft of ``n`` nodes, the surest first."""

    chances: Sequence[float]
    """The drafter's probability of the path to each node."""
    accepted: Sequence[int]
    """Places of the accepted nodes, from the root on."""

    def length(self, nodes: int) -> int:
        """Tokens that would have been accepted of so many of the best nodes."""
        return sum(place < nodes for place in self.accepted)


def chain_of(parents: Sequence[int], chances: Sequence[float], path: Sequence[int]) -> Verified:
    """The path of best children within a tree whose nodes have such ``parents``, 0 being the root, node 1 the best."""
    chain: list[int] = []
    while (node := chain[-1] + 1 if chain else 0) in parents:
        chain.append(parents.index(node))
    common = 0
    while common < min(len(chain), len(path)) and chain[common] == path[common]:
        common += 1
    return Verified([chances[place] for place in chain], range(common))


def verifications(method: str) -> list[tuple[Verified, Verified]]:
    """Every verification of ``method``'s trees, and of the chain in each of them."""
    from vllm_specext.engine.scheduler.scheduling import DraftLimits
    from vllm_specext.tree.expansion import Expansion

    trees: list[tuple[list[int], list[int], list[float]]] = []
    found: list[tuple[Verified, Verified]] = []
    grow, update = Expansion.tree, DraftLimits.update_from_output

    def tree(self: Any, nodes: int) -> Any:
        tokens, topology, expected = grow(self, nodes)
        chances = self.scores[:, : self.size].sort(dim=1, descending=True, stable=True).values[0, :nodes].exp()
        trees.append((tokens[0].tolist(), topology.parents[0, 1 : nodes + 1].tolist(), chances.tolist()))
        return tokens, topology, expected

    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        if scheduler_output.scheduled_spec_decode_tokens:
            (sampled,) = model_runner_output.sampled_token_ids
            tokens, parents, chances = trees[-2]
            path: list[int] = []
            for token in sampled:
                node = path[-1] + 1 if path else 0
                places = [place for place, one in enumerate(parents) if one == node and tokens[place] == token]
                if not places:
                    break
                path.append(places[0])
            if len(path) != len(sampled) - 1:
                raise AssertionError(f"{len(sampled) - 1} tokens were accepted, and the tree has {len(path)} of them")
            found.append((Verified(chances, path), chain_of(parents, chances, path)))
        return update(self, scheduler_output, model_runner_output)

    Expansion.tree, DraftLimits.update_from_output = tree, update_from_output  # type: ignore[method-assign]
    shape = {"num_speculative_tokens": NODES, "tree_depth": DEPTH, "tree_top_k": TOP_K}
    schedule = {"num_speculative_tokens_per_batch_size": [[1, 1000, NODES]]}
    model = str(MODELS / method.removesuffix("-tree"))
    engine = bundled_engine({"method": method, "model": model, **shape, **schedule})
    ids = [engine.tokenizer(row["text"])["input_ids"] for row in bundled_prompts()]
    engine.turn(ids, MAX_TOKENS, 1)
    return found


def lengths(drafts: Sequence[Verified], nodes: int, batch: int) -> tuple[float, float]:
    """Mean tokens per verification with so many ``nodes`` for each request of a ``batch``, alike and together."""
    drawn = random.Random(0)
    alike, together = [], []
    for _ in range(DRAWN):
        own = drawn.choices(drafts, k=batch)
        best = sorted(((-chance, at) for at, one in enumerate(own) for chance in one.chances))[: nodes * batch]
        shares = [0] * batch
        for _, at in best:
            shares[at] += 1
        alike.append(statistics.fmean(1 + one.length(nodes) for one in own))
        together.append(statistics.fmean(1 + one.length(share) for one, share in zip(own, shares, strict=True)))
    return statistics.fmean(alike), statistics.fmean(together)


def rows(method: str) -> list[dict[str, Any]]:
    found = verifications(method)
    kinds = {"tree": (TREES, [tree for tree, _ in found]), "chain": (CHAINS, [chain for _, chain in found])}
    told = []
    for kind, (sizes, drafts) in kinds.items():
        for nodes in sizes:
            for batch in BATCHES:
                alike, together = lengths(drafts, nodes, batch)
                told.append(
                    {
                        "method": method,
                        "draft": kind,
                        "nodes": nodes,
                        "requests": batch,
                        "verifications": len(drafts),
                        "alike": round(alike, 3),
                        "together": round(together, 3),
                        "gain": round(together / alike, 3),
                    }
                )
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for pooled_nodes.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(rows(json.loads(args.one))))
        return
    os.environ["VLLM_SPECEXT_NATIVE"] = "0"  # what is recorded calls no Python
    found = [
        row
        for method in ("griffin", "eagle3-tree")
        for row in in_own_process("benchmarks.pooled_nodes", method, method)
    ]
    for row in found:
        print(*row.values(), sep="\t")
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "pooled_nodes.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

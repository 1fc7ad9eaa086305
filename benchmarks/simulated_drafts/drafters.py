"""The methods as the simulation knows them: what a draft costs on a machine, and how much of it is accepted.

Acceptance is that of a chain on chat at temperature 0, of the size that papers and model cards report; sizes are those
of the released checkpoints. Both are there to have curves of the right shape, and no claim about any checkpoint.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.simulated_drafts.machines import HOST, Machine
from benchmarks.simulated_drafts.simulation import Cost, Drafts, constant
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.draft_size import DraftSize
from vllm_specext.tree.swift_sizes import MAX_DEPTH, NUM_CANDIDATES

Drafting = Callable[[Machine, int, DraftSize], float]
"""Seconds of drafting for so many requests."""

SMALL_VOCABULARY = 0.25
"""Share of the LM head that EAGLE-3's smaller vocabulary needs."""

TEXTS = 2e-4
"""Seconds in which a foreign tokenizer's texts are on the host, at one request; as much again for every 16."""


@dataclass(frozen=True)
class Method:
    name: str
    drafts: Drafts
    drafting: Drafting

    def cost(self, machine: Machine) -> Cost:
        """Of a step with the method on a ``machine``."""

        def seconds(requests: int, verified: DraftSize, drafted: DraftSize) -> float:
            verifying = machine.target_pass(requests, 1 + verified.nodes)
            return HOST + verifying + self.drafting(machine, requests, drafted)

        return seconds


def one_layer(fusion: float, head: float) -> Drafting:
    """A drafter of a layer of the target's width, with so many times its weights, and a share of its head. It reads the
    accepted tokens of every step, drafts or not, but the head only for drafts."""

    def seconds(machine: Machine, requests: int, size: DraftSize) -> float:
        target = machine.target
        layer = (target.weights - target.head) / target.layers * fusion
        width = max(1.0, size.nodes / max(size.levels, 1)) ** 0.5
        reading = machine.seconds(layer, 2, requests)
        if not size.levels:
            return reading
        passes = (size.levels - 1) * machine.seconds(layer + head * target.head, 3, requests * width)
        return reading + machine.seconds(head * target.head, 1, requests) + passes

    return seconds


def skipping(share: float) -> Drafting:
    """The target with a ``share`` of its layers left; the host asks after every level whether a chain goes on, which
    four in five do."""

    def seconds(machine: Machine, requests: int, size: DraftSize) -> float:
        passes = 5 * (1 - 0.8**size.levels)
        return passes * (machine.target_pass(requests, 1, share) + 1e-4)

    return seconds


def foreign(weights: float, layers: int, per_token: float, host: float) -> Drafting:
    """A language model of its own, with so many of its tokens for one of the target's."""

    def seconds(machine: Machine, requests: int, size: DraftSize) -> float:
        if not size.levels:
            return 0.0
        texts = host * (1 + requests / 16)
        return texts + (1 + per_token * size.levels) * machine.seconds(weights, layers, requests)

    return seconds


TREE, MOA_TREE = TreeShape(59, 6, 10), TreeShape(62, 6, 8)
SWIFT_TREE = TreeShape(32, MAX_DEPTH, NUM_CANDIDATES)

METHODS = (
    Method("GRIFFIN chain", Drafts(8, constant(0.72)), one_layer(2.2, 1.0)),
    Method("GRIFFIN tree", Drafts(59, constant(0.72), TREE, any_depth=True), one_layer(2.2, 1.0)),
    Method("MoA tree", Drafts(62, constant(0.66), MOA_TREE, any_depth=True), one_layer(1.5, 1.0)),
    Method("EAGLE-3 tree", Drafts(59, constant(0.74), TREE, any_depth=True), one_layer(1.2, SMALL_VOCABULARY)),
    Method("SWIFT", Drafts(32, constant(0.8), SWIFT_TREE), skipping(0.55)),
    Method("SLEM", Drafts(6, constant(0.62)), foreign(0.5e9, 24, 1.2, TEXTS)),
    Method("TLI", Drafts(5, constant(0.55)), foreign(0.5e9, 24, 1.0, TEXTS)),
    Method("SLRS", Drafts(3, constant(0.4)), foreign(0.1e9, 12, 4.0, 10 * TEXTS)),
)

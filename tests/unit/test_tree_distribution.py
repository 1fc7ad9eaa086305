"""Tokens that leave the verification walk follow the target's distribution, whatever the tree.

A target is a table of random conditional distributions over all prefixes. Every joint draw at a tree's nodes is
enumerated with its probability and walked; what is emitted, continued by plain sampling to a fixed length, must be
distributed as the target's own text of that length. Wrong walks fail the same assertions.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.unit.tree_reference import Path, Tree, tree_of
from vllm_specext.tree.walk import accept_tree

LEVELS = 3
LENGTH = LEVELS + 1
"""Most tokens one walk can emit."""

SIZES = [(4, 3, 0), (4, 6, 1), (4, 7, 2), (5, 5, 3), (6, 4, 4), (6, 5, 5)]
"""Vocabulary, nodes without the root, seed."""

Walk = Callable[[Tree, Tensor], tuple[Tensor, Tensor]]
"""Tokens drawn at each node ``[B, N + 1]`` -> emitted tokens ``[B, LENGTH]`` and how many of them count ``[B]``."""


def as_numbers(tokens: Tensor, vocabulary: int) -> Tensor:
    """``[B, t]`` -> ``[B]``."""
    return (tokens * vocabulary ** torch.arange(tokens.shape[1] - 1, -1, -1)).sum(dim=1)


@dataclass(frozen=True)
class Target:
    """``tables[t]`` ``[V^t, V]``: the next token's distribution after each prefix of ``t`` tokens, which is read as a
    number in base V."""

    vocabulary: int
    tables: list[Tensor]

    @classmethod
    def random(cls, vocabulary: int, seed: int) -> "Target":
        rng = torch.Generator().manual_seed(seed)
        logits = [torch.randn(vocabulary**t, vocabulary, generator=rng, dtype=torch.float64) for t in range(LENGTH)]
        return cls(vocabulary, [(1.5 * table).softmax(dim=-1) for table in logits])

    def after(self, prefix: Path) -> Tensor:
        return self.tables[len(prefix)][as_numbers(torch.tensor([prefix], dtype=torch.int64), self.vocabulary)[0]]

    def distribution(self, emitted: list[Tensor] | None = None) -> Tensor:
        """``[V^LENGTH]``: that of the target's own text, or of its continuations of ``emitted`` prefixes, whose masses
        are given by length, ``[V^t]`` with t from 1."""
        mass = torch.ones(1, dtype=torch.float64) if emitted is None else torch.zeros(1, dtype=torch.float64)
        for t, table in enumerate(self.tables):
            mass = (mass[:, None] * table).flatten()
            if emitted is not None:
                mass = mass + emitted[t]
        return mass


def random_paths(vocabulary: int, nodes: int, seed: int) -> list[Path]:
    """A tree's nodes, parents first: a path of full depth, then nodes anywhere."""
    rng = random.Random(seed)
    first = tuple(rng.choices(range(vocabulary), k=LEVELS))
    paths: list[Path] = [first[:depth] for depth in range(1, LEVELS + 1)]
    while len(paths) < nodes:
        parents = [path for path in [(), *paths] if len(path) < LEVELS]
        free = [(*parent, token) for parent in parents for token in range(vocabulary)]
        paths.append(rng.choice([path for path in free if path not in paths]))
    return paths


def distributions(target: Target, paths: list[Path]) -> Tensor:
    """``[N + 1, V]``: what the target draws from at each node."""
    return torch.stack([target.after(path) for path in [(), *paths]])


def expected_tokens(target: Target, paths: list[Path]) -> float:
    """One plus, for every node, the probability that the target's own text begins with the node's path."""
    return 1 + sum(
        math.prod(float(target.after(path[:depth])[token]) for depth, token in enumerate(path)) for path in paths
    )


def project_walk(tree: Tree, drawn: Tensor) -> tuple[Tensor, Tensor]:
    count, rows = drawn.shape
    emitted, num_sampled, _ = accept_tree(
        drawn.flatten(),
        torch.tensor(tree.tokens).repeat(count),
        torch.arange(count + 1) * rows,
        torch.tensor(tree.parents).expand(count, -1),
        LEVELS,
    )
    return emitted, num_sampled.long()


def believing_walk(tree: Tree, drawn: Tensor, levels: tuple[int, ...] = tuple(range(LEVELS))) -> tuple[Tensor, Tensor]:
    """At nodes of these levels, goes on to the first child whatever was drawn."""
    drawn = drawn.clone()
    for node in range(len(tree.parents) - 1, 0, -1):
        if tree.depths[node] - 1 in levels:
            drawn[:, tree.parents[node]] = tree.tokens[node]
    return project_walk(tree, drawn)


def level_skipping_walk(tree: Tree, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Does not compare the nodes of the second level."""
    return believing_walk(tree, drawn, levels=(1,))


def wrong_bonus_walk(tree: Tree, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Takes the last token from the last row instead of the row where the walk ended."""
    emitted, num_sampled = project_walk(tree, drawn)
    return emitted.scatter(1, num_sampled[:, None] - 1, drawn[:, -1:]), num_sampled


WRONG = [believing_walk, level_skipping_walk, wrong_bonus_walk]


def enumerated(target: Target, paths: list[Path], walk: Walk) -> tuple[Tensor, float]:
    """Distribution of the text and expected number of emitted tokens, over all joint draws."""
    rows, vocabulary = 1 + len(paths), target.vocabulary
    drawn = torch.cartesian_prod(*[torch.arange(vocabulary)] * rows)
    probability = distributions(target, paths)[torch.arange(rows), drawn].prod(dim=1)
    emitted, num_sampled = walk(tree_of(paths), drawn)
    masses = []
    for t in range(1, LENGTH + 1):
        ended = num_sampled == t
        mass = torch.zeros(vocabulary**t, dtype=torch.float64)
        masses.append(mass.index_add(0, as_numbers(emitted[ended, :t], vocabulary), probability[ended]))
    return target.distribution(masses), float((probability * num_sampled).sum())


def total_variation(distribution: Tensor, target: Target) -> float:
    return float((distribution - target.distribution()).abs().sum() / 2)


def p_value(target: Target, paths: list[Path], walk: Walk, samples: int) -> float:
    """Of the chi-square test of sampled texts, those expected less than 5 times taken together."""
    torch.manual_seed(0)
    draws = torch.multinomial(distributions(target, paths), samples, replacement=True).T
    text, num_sampled = walk(tree_of(paths), draws)
    for t, table in enumerate(target.tables):
        plain = torch.multinomial(table[as_numbers(text[:, :t], target.vocabulary)], 1)[:, 0]
        text[:, t] = torch.where(num_sampled > t, text[:, t], plain)
    observed = as_numbers(text, target.vocabulary).bincount(minlength=target.vocabulary**LENGTH).double()
    expected = samples * target.distribution()
    rare = expected < 5
    observed = torch.cat((observed[~rare], observed[rare].sum()[None]))
    expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(expected) - 1) / 2, dtype=torch.float64), statistic / 2))


@pytest.mark.parametrize(("vocabulary", "nodes", "seed"), SIZES)
def test_what_the_walk_emits_follows_the_targets_distribution(vocabulary: int, nodes: int, seed: int) -> None:
    target, paths = Target.random(vocabulary, seed), random_paths(vocabulary, nodes, seed)
    distribution, tokens = enumerated(target, paths, project_walk)
    assert total_variation(distribution, target) < 1e-12
    assert abs(tokens - expected_tokens(target, paths)) < 1e-12


@pytest.mark.parametrize("walk", WRONG)
@pytest.mark.parametrize(("vocabulary", "nodes", "seed"), SIZES)
def test_a_wrong_walk_breaks_the_distribution(vocabulary: int, nodes: int, seed: int, walk: Walk) -> None:
    target, paths = Target.random(vocabulary, seed), random_paths(vocabulary, nodes, seed)
    assert total_variation(enumerated(target, paths, walk)[0], target) > 1e-4


def test_sampled_texts_pass_a_chi_square_test_and_those_of_wrong_walks_do_not() -> None:
    target, paths = Target.random(4, 9), random_paths(4, 12, 9)
    assert p_value(target, paths, project_walk, samples=50_000) > 0.01
    for walk in WRONG:
        assert p_value(target, paths, walk, samples=50_000) < 1e-9

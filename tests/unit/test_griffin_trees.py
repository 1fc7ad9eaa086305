"""Trees of the plain GRIFFIN drafter against those that the official classes grew (``tests/data/griffin_case1.pt``)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.tree_reference import Path
from vllm_specext.methods.griffin.model import KV, GriffinDrafter
from vllm_specext.tree.expansion import Expansion, best_tokens
from vllm_specext.tree.topology import unpack

Tokens = list[int]


def unchanged(mask: Tensor) -> Tensor:
    return mask


def draft(
    drafter: GriffinDrafter,
    oracle: dict[str, Any],
    tokens: Tensor,
    features: Tensor,
    past: KV | None,
    change_mask: Callable[[Tensor], Tensor] = unchanged,
) -> tuple[Expansion, KV]:
    """One cycle: the new ``tokens`` ``[1, L]``, each with the feature before it, on top of ``past``; then the levels.
    Returns the keys and values of the prefix."""
    k, levels = oracle["top_k"], oracle["depth"] + 1
    before = 0 if past is None else past[0].shape[2]
    length = before + tokens.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None, before:]
    predict, regress, prefix = drafter(tokens, features, torch.arange(before, length)[None], causal, past)
    logits = predict[:, -1] @ oracle["head_weight"].T
    expansion = Expansion(*best_tokens(logits, k), levels)
    features, cache = regress[:, -1:].expand(-1, k, -1), prefix
    for level in range(levels - 1):
        nodes = expansion.frontier
        if level > 0:
            features = regress.gather(1, nodes.parents[..., None].expand_as(regress))
        own = unpack(nodes.visible, (level + 1) * k)
        mask = torch.cat((torch.ones(1, k, length, dtype=torch.bool), change_mask(own)), dim=-1)[:, None]
        positions = torch.full((1, k), length + level)
        predict, regress, cache = drafter(nodes.tokens, features, positions, mask, cache)
        expansion.grow(*best_tokens(predict @ oracle["head_weight"].T, k))
    return expansion, prefix


def paths(tokens: Tokens, ancestors: Tensor) -> set[Path]:
    """Paths of the drafted nodes; ``tokens`` of all nodes, the root's first, and ``ancestors`` ``[N + 1, N + 1]``."""
    return {tuple(tokens[node] for node in row.nonzero().flatten().tolist()[1:]) for row in ancestors[1:]}


def paths_of(expansion: Expansion, nodes: int) -> set[Path]:
    tokens, topology, _ = expansion.tree(nodes)
    return paths([-1, *tokens[0].tolist()], unpack(topology.ancestors[0], nodes + 1))


def official_paths(tree: dict[str, Tensor]) -> set[Path]:
    return paths(tree["draft_tokens"][0].tolist(), tree["tree_mask"][0, 0].bool())


def first_cycle(drafter: GriffinDrafter, oracle: dict[str, Any], change: Callable[[Tensor], Tensor] = unchanged) -> Any:
    return draft(drafter, oracle, oracle["tokens"][:, 1:], oracle["features"], None, change)


@pytest.mark.parametrize("sampling", ["greedy", "sampling"])
def test_two_cycles_grow_the_official_trees(drafter: GriffinDrafter, oracle: dict[str, Any], sampling: str) -> None:
    official, nodes = oracle["tree"][sampling], oracle["total_token_arg"] - 1
    first, kept = first_cycle(drafter, oracle)
    expected = official_paths(official["first"])
    assert len(expected) == nodes
    assert paths_of(first, nodes) == expected

    # Two drafted tokens were accepted and one drawn after them.
    new = official["second_tokens"][:, oracle["tokens"].shape[1] :]
    assert new.shape[1] == official["second_features"].shape[1] == 3
    second, kept = draft(drafter, oracle, new, official["second_features"], kept)
    assert kept[0].shape[2] == official["stable_kv_len_after_second"]
    assert paths_of(second, nodes) == official_paths(official["second"]) != expected


def test_depths_are_the_official_ones(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    official, nodes = oracle["tree"]["greedy"]["first"], oracle["total_token_arg"] - 1
    _, topology, _ = first_cycle(drafter, oracle)[0].tree(nodes)
    assert sorted(topology.depths[0].tolist()) == sorted(official["tree_position_ids"].tolist())


def test_a_perturbed_weight_grows_another_tree(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    drafter.layer.mlp.up_proj.weight.mul_(1.5)
    nodes = oracle["total_token_arg"] - 1
    assert paths_of(first_cycle(drafter, oracle)[0], nodes) != official_paths(oracle["tree"]["greedy"]["first"])


@pytest.mark.parametrize("wrong", [torch.ones_like, lambda own: own.roll(1, dims=1)], ids=["all", "a sibling's"])
def test_wrong_visible_bits_grow_another_tree(drafter: GriffinDrafter, oracle: dict[str, Any], wrong: Any) -> None:
    nodes = oracle["total_token_arg"] - 1
    assert paths_of(first_cycle(drafter, oracle, wrong)[0], nodes) != official_paths(oracle["tree"]["greedy"]["first"])

"""What the drafter computes for trees on the real engine is what the plain torch drafter computes, pass by pass.

A mistake here would never change the output, only make drafts worse, so that no test of equality would notice it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.engine.conftest import CHAIN, Result, tree
from tests.engine.test_serving_model import Pass, reference
from tests.engine.workload import DRAFTS, GREEDY, GRIFFIN, TARGET, requests
from vllm_specext.methods.griffin.model import KV
from vllm_specext.tree.expansion import Expansion, best_tokens
from vllm_specext.tree.topology import unpack

TOP_K, LEVELS, TOKENS = 4, 6, 24
REQUEST: dict[str, Any] = requests(3)[2]


Drafter = Callable[[Tensor, Tensor, Tensor, Tensor, KV | None], tuple[Tensor, Tensor, KV]]
"""A plain drafter: token ids and positions ``[1, rows]``, features ``[1, rows, d]``, mask ``[1, 1, rows, keys]`` and
the keys and values before them, to features for the head and for the next pass, and the keys and values with theirs."""


def record(
    engines: Callable[..., Result],
    path: Path,
    llm: dict[str, Any],
    extra_args: dict[str, Any] | None = None,
    **switches: Any,
) -> tuple[list[int], list[Pass]]:
    """One request's whole sequence and the drafter's passes for it; ``extra_args`` are the request's."""
    sampling = GREEDY | {"max_tokens": TOKENS, "ignore_eos": True} | ({"extra_args": extra_args} if extra_args else {})
    result = engines(llm, rounds=[[{"ids": REQUEST["ids"], "sampling": sampling}]], record=str(path), **switches)
    return REQUEST["ids"] + result["outputs"][0]["ids"], torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def recorded(engines: Callable[..., Result], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], list[Pass]]:
    return record(engines, tmp_path_factory.mktemp("tree") / "passes.pt", tree(24, TOP_K))


def drafts(passes: list[Pass], levels: int = LEVELS) -> list[tuple[Pass, list[Pass]]]:
    """The first pass of every draft, over what was accepted, and the passes of its further levels."""
    return [(passes[at], passes[at + 1 : at + levels]) for at in range(0, len(passes) - levels + 1, levels)]


def accepted(first: Pass, levels: list[Pass]) -> Pass:
    """The first pass without the rows behind the accepted path; the levels start at the position after it."""
    count = int(levels[0]["positions"][0] - first["positions"][0])
    return {name: tensor[:count] for name, tensor in first.items()}


class Replay:
    """The plain drafter with its own keys and values, fed with what the engine's drafter was fed with."""

    def __init__(self, drafter: Drafter, logits: Callable[[Tensor], Tensor] | None = None) -> None:
        """``logits``: of features ``[..., d]``, unless the bundled target's output layer scores them."""
        self.drafter = drafter
        head = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"].float()
        self.logits = logits or (lambda features: features @ head.T)
        self.prefix: KV | None = None
        self.largest = 0.0
        """Difference of two features, as a share of the largest number where that is above 1."""

    @torch.no_grad()
    def draft(self, first: Pass, levels: list[Pass]) -> None:
        start = int(first["positions"][0])
        length = start + len(first["ids"])
        causal = torch.ones(length, length, dtype=torch.bool).tril()[start:]
        predict, regress, self.prefix = self._run(first, causal, self.prefix)
        sharpness = first["sharpness"].expand(1, TOP_K)
        growing = Expansion(*best_tokens(self.logits(predict[:, -1]), TOP_K, sharpness[:, 0]), LEVELS)
        features, past = regress[:, -1:].expand(-1, TOP_K, -1), self.prefix
        for level, one in enumerate(levels):
            frontier = growing.frontier
            if level:
                features = regress.gather(1, frontier.parents[..., None].expand_as(regress))
            assert one["ids"].tolist() == frontier.tokens[0].tolist()
            assert one["positions"].tolist() == [length + level] * TOP_K
            self._compare(features[0], one["features"])
            seen = torch.ones(TOP_K, length, dtype=torch.bool)
            mask = torch.cat((seen, unpack(frontier.visible[0], (level + 1) * TOP_K)), dim=-1)
            predict, regress, past = self._run(one, mask, past)
            growing.grow(*best_tokens(self.logits(predict), TOP_K, sharpness))

    def _run(self, one: Pass, mask: Tensor, past: KV | None) -> tuple[Tensor, Tensor, KV]:
        inputs = one["ids"].long()[None], one["features"][None], one["positions"][None]
        predict, regress, past = self.drafter(*inputs, mask[None, None], past)
        # A drafter may leave out the features that nobody reads: of the first pass those before the last.
        known = one["predict"].any(dim=-1)
        assert known[-1]
        self._compare(predict[0, known], one["predict"][known])
        self._compare(regress[0, known], one["regress"][known])
        return predict, regress, past

    def _compare(self, ours: Tensor, theirs: Tensor) -> None:
        self.largest = max(self.largest, float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1)))


def test_every_level_of_every_draft_is_that_of_the_plain_drafter(recorded: tuple[list[int], list[Pass]]) -> None:
    replay = Replay(reference(GRIFFIN))
    made = drafts(recorded[1])
    assert len(made) >= 5
    for first, levels in made:
        replay.draft(accepted(first, levels), levels)
    assert replay.largest < 1e-4


def test_the_drafter_reads_the_accepted_tokens_with_the_targets_features(
    engines: Callable[..., Result], recorded: tuple[list[int], list[Pass]], tmp_path: Path
) -> None:
    """Position by position the tokens that were emitted, and the features that it reads where chains are drafted."""
    sequence, passes = recorded
    other, chain = record(engines, tmp_path / "chain.pt", {"speculative_config": CHAIN})
    assert other == sequence
    features: dict[int, Tensor] = {}
    for one in (accepted(*draft) for draft in drafts(chain, DRAFTS)):
        features |= dict(zip(one["positions"].tolist(), one["features"], strict=True))
    compared = 0
    for first in (accepted(*draft) for draft in drafts(passes)):
        for token, position, feature in zip(first["ids"], first["positions"].tolist(), first["features"], strict=True):
            if position + 1 == len(sequence):  # what was accepted beyond the request's last token
                break
            assert int(token) == sequence[position + 1]
            if position in features:
                assert torch.allclose(feature, features[position], atol=1e-3)
                compared += 1
    assert compared > len(REQUEST["ids"]) + 10


def test_a_node_that_sees_its_cousin_would_be_noticed(recorded: tuple[list[int], list[Pass]]) -> None:
    first, levels = drafts(recorded[1])[0]
    replay = Replay(reference(GRIFFIN))
    stock, newest = replay._run, torch.tensor([-1])

    def see_the_newest_node(one: Pass, mask: Tensor, past: KV | None) -> tuple[Tensor, Tensor, KV]:
        return stock(one, mask.index_fill(1, newest % mask.shape[1], True), past)

    replay._run = see_the_newest_node  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        replay.draft(first, levels)

"""What MoA's drafter computes on the real engine is what the plain torch drafter computes, pass by pass.

A mistake here would never change the output, only make drafts worse, so that no test of equality would notice it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.engine.conftest import Result, moa
from tests.engine.test_serving_model import Pass
from tests.engine.workload import GREEDY, MOA, TARGET, requests
from vllm_specext.methods.layers import KV
from vllm_specext.methods.moa.checkpoint import read_shape, read_tensors
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.training.moa.target import last_target_layers, target_states
from vllm_specext.tree.expansion import Expansion, best_tokens
from vllm_specext.tree.topology import unpack

TOP_K, LEVELS, TOKENS = 4, 6, 24
REQUEST: dict[str, Any] = requests(3)[2]


def record(engines: Callable[..., Result], path: Path, inferred: int) -> tuple[list[int], list[Pass]]:
    """One request's whole sequence and the drafter's passes for it."""
    sampling = GREEDY | {"max_tokens": TOKENS, "ignore_eos": True}
    config = moa(24, TOP_K, target_layer_inference=inferred)
    result = engines(config, rounds=[[{"ids": REQUEST["ids"], "sampling": sampling}]], record=str(path))
    return REQUEST["ids"] + result["outputs"][0]["ids"], torch.load(path, weights_only=True)


class Replay:
    """The plain drafter over what transformers' target has computed for the final text."""

    def __init__(self, sequence: list[int], inferred: int) -> None:
        target = LlamaForCausalLM.from_pretrained(TARGET).float().eval().requires_grad_(False)
        ids = torch.tensor([sequence])
        self.seen = target_states(target, ids, torch.ones_like(ids, dtype=torch.bool), inferred)
        self.embedding, self.head = target.get_input_embeddings().weight, target.lm_head.weight
        self.last = last_target_layers(target, inferred) if inferred else None
        self.drafter = MoADrafter(read_shape(MOA)).eval()
        self.drafter.load_state_dict({name: tensor.float() for name, tensor in read_tensors(MOA).items()})
        self.sequence, self.largest = sequence, 0.0

    @torch.no_grad()
    def draft(self, passes: list[Pass]) -> None:
        """A root's pass and those of the levels that grow from it."""
        root = int(passes[0]["positions"][0])
        assert passes[0]["ids"].tolist() == [self.sequence[root]]
        positions = torch.arange(root)[None]
        self.verified = self.drafter.absorb(self.seen.kv[:, :root], positions)
        self.past = self.drafter.self_attention.keys_values(self.seen.embeddings[:, :root], positions)
        self.pasts = [(keys[:, :, :root], values[:, :, :root]) for keys, values in self.seen.last_kvs]
        features = self._run(passes[0], torch.ones(1, root + 1, dtype=torch.bool))
        sharpness = passes[0]["sharpness"].expand(1, TOP_K)
        growing = Expansion(*best_tokens(features[:, -1] @ self.head.T, TOP_K, sharpness[:, 0]), LEVELS)
        seen = torch.ones(TOP_K, root + 1, dtype=torch.bool)
        for level, one in enumerate(passes[1:]):
            assert one["ids"].tolist() == growing.frontier.tokens[0].tolist()
            assert one["positions"].tolist() == [root + 1 + level] * TOP_K
            nodes = unpack(growing.frontier.visible[0], (level + 1) * TOP_K)
            features = self._run(one, torch.cat((seen, nodes), dim=-1))
            growing.grow(*best_tokens(features @ self.head.T, TOP_K, sharpness))

    def _run(self, one: Pass, mask: Tensor) -> Tensor:
        positions, mask = one["positions"][None], mask[None, None]
        hidden, self.past = self.drafter.read(self.embedding[one["ids"].long()][None], positions, mask, self.past)
        features = self.drafter.predict(hidden, positions, self.verified)
        if self.last is not None:
            features, kvs = self.last(features, positions, mask, self.pasts)
            self.pasts: list[KV] = kvs
        self.largest = max(self.largest, float((features[0] - one["predict"]).abs().max()))
        return features


def drafts(passes: list[Pass]) -> list[list[Pass]]:
    return [passes[at : at + LEVELS] for at in range(0, len(passes) - LEVELS + 1, LEVELS)]


@pytest.fixture(scope="module")
def inferring(engines: Callable[..., Result], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], list[Pass]]:
    return record(engines, tmp_path_factory.mktemp("moa") / "passes.pt", 1)


@pytest.mark.parametrize("inferred", [pytest.param(0, marks=pytest.mark.extended), 1])
def test_every_pass_of_every_draft_is_that_of_the_plain_drafter(
    engines: Callable[..., Result], inferring: tuple[list[int], list[Pass]], tmp_path: Path, inferred: int
) -> None:
    sequence, passes = inferring if inferred else record(engines, tmp_path / "passes.pt", inferred)
    replay = Replay(sequence, inferred)
    made = [draft for draft in drafts(passes) if int(draft[0]["positions"][0]) < len(sequence)]
    assert len(made) >= 5
    for draft in made:
        replay.draft(draft)
    assert replay.largest < 1e-3


def test_a_drafter_that_sees_a_token_less_would_be_noticed(inferring: tuple[list[int], list[Pass]]) -> None:
    sequence, passes = inferring
    replay = Replay(sequence, 1)
    stock = replay.drafter.absorb
    replay.drafter.absorb = lambda kv, at: stock(kv[:, :-1], at[:, :-1])  # type: ignore[method-assign]
    replay.draft(drafts(passes)[2][:1])
    assert replay.largest > 1e-2

"""What vLLM's DFlash drafter drafts on the real engine is what the plain torch drafter drafts, block by block.

A mistake here would never change the output, only make drafts worse, so that no test of equality would notice it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.engine.conftest import Result, of_method
from tests.engine.test_serving_model import Pass
from tests.engine.workload import DFLASH, GREEDY, TARGET, requests
from vllm_specext.demo.dflash import BLOCK, MASK, shape_for
from vllm_specext.methods.block.model import DFlashDrafter, blocks
from vllm_specext.tree.marginals import best_tree

NODES, TOP_K, TOKENS = 24, 6, 24
REQUEST: dict[str, Any] = requests(3)[2]


class Drafter:
    """The plain drafter over what transformers' target has computed for the final text."""

    def __init__(self, sequence: list[int], folder: Path) -> None:
        target = LlamaForCausalLM.from_pretrained(TARGET).float().eval().requires_grad_(False)
        hidden = target.model(torch.tensor([sequence]), output_hidden_states=True).hidden_states
        shape = shape_for(target.config)
        self.states = torch.cat([hidden[layer] for layer in shape.reads], dim=-1)
        self.embedding, self.head = target.get_input_embeddings(), target.lm_head
        self.drafter = DFlashDrafter(shape.sizes()).eval()
        tensors = load_file(folder / "model.safetensors")
        own = {name: x.float() for name, x in tensors.items() if not name.startswith("markov_head.")}
        self.drafter.load_state_dict(own)
        self.sequence = sequence

    @torch.no_grad()
    def block(self, anchor: int) -> Tensor:
        """Features ``[BLOCK, d]`` of the block that begins at ``anchor``."""
        places, mask = blocks(torch.tensor([[anchor]]), BLOCK, anchor)
        ids = torch.tensor([[self.sequence[anchor], *[MASK] * (BLOCK - 1)]])
        return self.drafter(self.embedding(ids), places, self.states[:, :anchor], mask)[0]

    @torch.no_grad()
    def tree(self, anchor: int, sharpness: Tensor) -> list[int]:
        best = (sharpness * self.head(self.block(anchor)[1:])).log_softmax(dim=-1).topk(TOP_K)
        tokens, _, _ = best_tree(best.indices[None], best.values[None], NODES)
        return tokens[0].tolist()


def recorded_drafts(engines: Callable[..., Result], config: dict[str, Any], path: Path) -> tuple[list[int], list[Pass]]:
    """What an engine says to the request, with its prompt, and what it drafted within, which it keeps at ``path``."""
    sampling = GREEDY | {"max_tokens": TOKENS, "ignore_eos": True}
    asked = [[{"ids": REQUEST["ids"], "sampling": sampling}]]
    result = engines(config, rounds=asked, record=str(path))
    sequence = REQUEST["ids"] + result["outputs"][0]["ids"]
    # vLLM 0.33 drafts nothing after a request's last token.
    passes = [one for one in torch.load(path, weights_only=True) if "tokens" in one and one["tokens"].numel()]
    return sequence, [one for one in passes if int(one["positions"][0]) < len(sequence)]


@pytest.fixture(scope="module")
def recorded(engines: Callable[..., Result], tmp_path_factory: pytest.TempPathFactory) -> tuple[Drafter, list[Pass]]:
    config = of_method("dflash-tree", DFLASH, NODES, TOP_K)
    sequence, passes = recorded_drafts(engines, config, tmp_path_factory.mktemp("dflash") / "passes.pt")
    return Drafter(sequence, DFLASH), passes


def difference(drafter: Drafter, one: Pass) -> float:
    anchor = int(one["positions"][0])
    assert one["ids"].tolist() == [drafter.sequence[anchor], *[MASK] * (BLOCK - 1)]
    assert one["positions"].tolist() == list(range(anchor, anchor + BLOCK))
    return float((drafter.block(anchor) - one["predict"]).abs().max())


def test_every_block_is_that_of_the_plain_drafter(recorded: tuple[Drafter, list[Pass]]) -> None:
    drafter, passes = recorded
    assert len(passes) >= 5
    for one in passes:
        assert difference(drafter, one) < 1e-3


def test_every_draft_is_that_of_the_plain_drafter(recorded: tuple[Drafter, list[Pass]]) -> None:
    drafter, passes = recorded
    for one in passes:
        assert one["tokens"][0].tolist() == drafter.tree(int(one["positions"][0]), one["sharpness"])


def test_a_drafter_that_misses_a_state_would_be_noticed(recorded: tuple[Drafter, list[Pass]]) -> None:
    drafter, passes = recorded
    whole = drafter.states
    drafter.states = torch.cat((whole[:, :1], whole[:, :-1]), dim=1)
    found = difference(drafter, passes[2])
    drafter.states = whole
    assert found > 1e-2

"""Trees of DSpark drafters on the real engine: the tokens of plain decoding, and drafts that are those of plain torch.

There is no trained one. The bundled DFlash drafter gets a made Markov head, in both layouts of a block; it says so
little that some of what is drafted is accepted.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.conftest import Result, of_method
from tests.engine.test_dflash_drafting import NODES, Drafter, recorded_drafts
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_serving_model import Pass
from tests.engine.workload import DFLASH, DRAFTS
from vllm_specext.demo.dflash import BLOCK, MASK
from vllm_specext.methods.block.model import blocks
from vllm_specext.tree.expansion import Expansion, best_tokens

Engines = Callable[..., Result]

RANK, TOP_K = 8, 4
SCALE = 0.4
"""Of the Markov head's numbers: its biases are half a nat then."""


@pytest.fixture(
    scope="module",
    params=[False, pytest.param(True, marks=pytest.mark.extended)],
    ids=["bonus token", "from the anchor"],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dspark")
    own = json.loads((DFLASH / "config.json").read_text())
    section = own.pop("dflash_config")
    for key in [key for key in own if key.startswith("speculators") or key == "transformer_layer_config"]:
        del own[key]
    own |= section | {
        "architectures": ["Qwen3DSparkModel"],
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "sample_from_anchor": request.param,
    }
    (made / "config.json").write_text(json.dumps(own))
    generator = torch.Generator().manual_seed(0)
    heads = {
        f"markov_head.markov_{name}.weight": (SCALE * torch.randn(own["vocab_size"], RANK, generator=generator)).half()
        for name in ("w1", "w2")
    }
    save_file(load_file(DFLASH / "model.safetensors") | heads, made / "model.safetensors")
    return made


def is_from_anchor(folder: Path) -> bool:
    return bool(json.loads((folder / "config.json").read_text())["sample_from_anchor"])


def dspark(folder: Path, nodes: int, top_k: int, **own: Any) -> dict[str, Any]:
    return of_method("dspark-tree", folder, nodes, top_k, **own)


@pytest.mark.parametrize(("nodes", "top_k"), [(NODES, TOP_K), pytest.param(DRAFTS, 1, marks=pytest.mark.extended)])
def test_trees_and_chains_give_the_tokens_of_plain_decoding(
    engines: Engines, folder: Path, nodes: int, top_k: int
) -> None:
    result = engines(dspark(folder, nodes, top_k), keep_async=True)
    assert differing(result, engines({})) == []
    assert result["sizes"][str(nodes)] > 60
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 25


@pytest.mark.extended
def test_a_deliberate_fault_in_a_tree_is_noticed(engines: Engines, folder: Path) -> None:
    assert is_noticed(engines, engines({}), dspark(folder, NODES, TOP_K), "skip_compaction")


class MarkovDrafter(Drafter):
    def __init__(self, sequence: list[int], folder: Path) -> None:
        super().__init__(sequence, folder)
        tensors = load_file(folder / "model.safetensors")
        self.w1, self.w2 = (tensors[f"markov_head.markov_{name}.weight"].float() for name in ("w1", "w2"))
        self.from_anchor = is_from_anchor(folder)
        self.levels = BLOCK - 1 + self.from_anchor

    @torch.no_grad()
    def markov_tree(self, anchor: int, sharpness: Tensor) -> list[int]:
        base = self.head(self.positions(anchor))
        growing = Expansion(*self._best(base[0], torch.tensor([self.sequence[anchor]]), sharpness), self.levels)
        for level in range(1, self.levels):
            tokens, log_probs = self._best(base[level], growing.frontier.tokens[0], sharpness)
            growing.grow(tokens[None], log_probs[None])
        return growing.tree(NODES)[0][0].tolist()

    def positions(self, anchor: int) -> Tensor:
        """Features ``[levels, d]`` of the drafted positions."""
        if not self.from_anchor:
            return self.block(anchor)[1:]
        places, mask = blocks(torch.tensor([[anchor]]), BLOCK, anchor)
        ids = torch.tensor([[self.sequence[anchor], *[MASK] * (BLOCK - 1)]])
        return self.drafter(self.embedding(ids), places, self.states[:, :anchor], mask)[0]

    def _best(self, base: Tensor, parents: Tensor, sharpness: Tensor) -> tuple[Tensor, Tensor]:
        return best_tokens(base + self.w1[parents] @ self.w2.T, TOP_K, sharpness.expand(len(parents)))


@pytest.fixture(scope="module")
def recorded(engines: Engines, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], list[Pass]]:
    path = tmp_path_factory.mktemp("passes") / "passes.pt"
    return recorded_drafts(engines, dspark(folder, NODES, TOP_K), path)


def test_every_draft_is_that_of_plain_torch(folder: Path, recorded: tuple[list[int], list[Pass]]) -> None:
    sequence, passes = recorded
    drafter = MarkovDrafter(sequence, folder)
    assert len(passes) >= 5
    for one in passes:
        assert len(one["ids"]) == BLOCK
        assert one["tokens"][0].tolist() == drafter.markov_tree(int(one["positions"][0]), one["sharpness"])


def test_a_drafter_without_its_markov_head_would_be_noticed(
    folder: Path, recorded: tuple[list[int], list[Pass]]
) -> None:
    sequence, passes = recorded
    drafter = MarkovDrafter(sequence, folder)
    drafter.w2 = torch.zeros_like(drafter.w2)
    assert any(
        one["tokens"][0].tolist() != drafter.markov_tree(int(one["positions"][0]), one["sharpness"]) for one in passes
    )

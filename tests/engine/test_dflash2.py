"""Trees of drafters of DFlash's second kind on the real engine: the tokens of plain decoding, and drafts that are those
of plain torch.

There is no trained one: this one is made (``dflash2.py``).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.engine.conftest import TIGHT_FOR_TREES, Result, of_method
from tests.engine.dflash2 import CANDIDATES, GROUP, MULTIPLIER, TAPS, dflash2
from tests.engine.test_dflash_drafting import NODES, Drafter, recorded_drafts
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_serving_model import Pass
from tests.engine.workload import DFLASH, DRAFTS
from vllm_specext.demo.dflash import BLOCK, MASK
from vllm_specext.methods.layers import extend
from vllm_specext.tree.expansion import Expansion, best_tokens

Engines = Callable[..., Result]

extended = pytest.mark.extended
TOP_K = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dflash2(tmp_path_factory.mktemp("dflash2"))


def drafting(folder: Path, nodes: int, top_k: int, **own: Any) -> dict[str, Any]:
    return of_method("dflash-tree", folder, nodes, top_k, **own)


class PlainDrafter(Drafter):
    """In plain torch, by the authors' code (z-lab/dflash, ``dflash/model.py``)."""

    def __init__(self, sequence: list[int], folder: Path) -> None:
        super().__init__(sequence, DFLASH)
        self.own = {name: x.float() for name, x in load_file(folder / "model.safetensors").items()}
        self.levels = BLOCK - 1

    def convolved(self, name: str, rows: Tensor, coefficients: Tensor, side: int) -> Tensor:
        """``rows`` ``[B, d]``; ``coefficients`` ``[B, taps, d / group]`` on top of those of all rows."""
        base, found = self.own[f"layers.0.{name}.base_kernel"][side], torch.zeros_like(rows)
        for tap in range(TAPS):
            shifted = torch.cat((torch.zeros(tap, rows.shape[1]), rows[: len(rows) - tap]))
            found += (base[tap] + coefficients[:, tap].repeat_interleave(GROUP, dim=1)) * shifted
        return found

    def around(self, name: str, rows: Tensor, inner: Callable[[Tensor], Tensor]) -> Tensor:
        """A convolution before ``inner`` and one after it, both with coefficients that the ``rows`` make."""
        made = rows @ self.own[f"layers.0.{name}.kernel_projection.weight"].T
        before, after = made.view(len(rows), 2, TAPS, -1).unbind(dim=1)
        return self.convolved(name, inner(self.convolved(name, rows, before, 0)), after, 1)

    @torch.no_grad()
    def block(self, anchor: int) -> Tensor:
        ids = torch.tensor([self.sequence[anchor], *[MASK] * (BLOCK - 1)])
        places, before = torch.arange(anchor, anchor + BLOCK)[None], torch.arange(anchor)[None]
        text, layer = self.drafter.hidden_norm(self.drafter.fc(self.states[:, :anchor])), self.drafter.layers[0]

        def attention(rows: Tensor) -> Tensor:
            own, attend = rows[None], layer.self_attn
            seen = extend(attend.keys_values(text, before), attend.keys_values(own, places))
            return attend.attend(attend.queries(own, places), seen, None)[0]

        rows = self.embedding(ids)
        rows = rows + self.around("attention_conv", layer.input_layernorm(rows), attention)
        rows = rows + self.around("mlp_conv", layer.post_attention_layernorm(rows), layer.mlp)
        return self.drafter.norm(rows)

    @torch.no_grad()
    def tree(self, anchor: int, sharpness: Tensor) -> list[int]:
        features = self.block(anchor)[1:]
        logits, candidates = (MULTIPLIER * self.head(features)).topk(CANDIDATES)
        table = {side: self.own[f"candidate_selector.{side}_codebook"] for side in ("predecessor", "successor")}
        hidden = features @ self.own["candidate_selector.hidden_projection.weight"].T

        def best(level: int, parents: Tensor) -> tuple[Tensor, Tensor]:
            neighbours = (table["predecessor"][parents] * hidden[level]) @ table["successor"][candidates[level]].T
            places, log_probs = best_tokens(logits[level] + neighbours, TOP_K, sharpness.expand(len(parents)))
            return candidates[level][places], log_probs

        growing = Expansion(*best(0, torch.tensor([self.sequence[anchor]])), self.levels)
        for level in range(1, self.levels):
            tokens, log_probs = best(level, growing.frontier.tokens[0])
            growing.grow(tokens[None], log_probs[None])
        return growing.tree(NODES)[0][0].tolist()


@pytest.fixture(scope="module")
def recorded(
    engines: Engines, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PlainDrafter, list[Pass]]:
    path = tmp_path_factory.mktemp("passes") / "passes.pt"
    sequence, passes = recorded_drafts(engines, drafting(folder, NODES, TOP_K), path)
    return PlainDrafter(sequence, folder), passes


def difference(drafter: PlainDrafter, one: Pass) -> float:
    return float((drafter.block(int(one["positions"][0])) - one["predict"]).abs().max())


def test_every_block_and_draft_is_that_of_the_plain_drafter(recorded: tuple[PlainDrafter, list[Pass]]) -> None:
    drafter, passes = recorded
    assert len(passes) >= 5
    for one in passes:
        assert difference(drafter, one) < 1e-3
        assert one["tokens"][0].tolist() == drafter.tree(int(one["positions"][0]), one["sharpness"])


@pytest.mark.parametrize("name", ["layers.0.mlp_conv.base_kernel", "candidate_selector.successor_codebook"])
def test_what_is_left_out_would_be_noticed(recorded: tuple[PlainDrafter, list[Pass]], name: str) -> None:
    drafter, passes = recorded
    whole = drafter.own[name]
    drafter.own[name] = torch.ones_like(whole) if name.endswith("kernel") else torch.zeros_like(whole)
    trees = [drafter.tree(int(one["positions"][0]), one["sharpness"]) for one in passes]
    drafter.own[name] = whole
    assert trees != [one["tokens"][0].tolist() for one in passes]


@pytest.mark.parametrize(
    ("nodes", "top_k", "own", "options"),
    [
        (24, TOP_K, {}, {}),
        pytest.param(59, CANDIDATES, TIGHT_FOR_TREES, {}, marks=extended),
        pytest.param(24, TOP_K, {}, {"graphs": [2, 5, 8]}, marks=extended),
        pytest.param(24, TOP_K, {"enforce_eager": False}, {}, marks=extended),
        pytest.param(DRAFTS, 1, {}, {}, marks=extended),
    ],
    ids=["eager", "tight", "recorded", "compiled", "chains"],
)
def test_drafts_give_the_tokens_of_plain_decoding(
    engines: Engines, folder: Path, nodes: int, top_k: int, own: dict[str, Any], options: dict[str, Any]
) -> None:
    result = engines(drafting(folder, nodes, top_k) | own, keep_async=True, **options)
    plain = {key: value for key, value in own.items() if key == "enforce_eager"}
    assert differing(result, engines(plain)) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60
    assert result["sizes"][str(nodes)] > 60


@extended
def test_trees_of_a_shorter_block_do(engines: Engines, folder: Path) -> None:
    result = engines(drafting(folder, NODES, TOP_K, tree_depth=3), keep_async=True)
    assert differing(result, engines({})) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60


@extended
def test_a_deliberate_fault_is_noticed(engines: Engines, folder: Path) -> None:
    assert is_noticed(engines, engines({}), drafting(folder, NODES, TOP_K), "skip_compaction")

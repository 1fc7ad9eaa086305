"""Block drafters whose layers see a window of the text, or earlier rows of the block alone, whose heads have sinks, and
whose embeddings and logits are scaled: the tokens of plain decoding, and drafts that are those of plain torch.

There is no trained one. The bundled DFlash drafter's layer is given a second one like it, which says little.
"""

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.conftest import TIGHT_FOR_TREES, Result, of_method
from tests.engine.test_dflash_drafting import NODES, TOP_K, Drafter, recorded_drafts
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_serving_model import Pass
from tests.engine.windows import windowed
from tests.engine.workload import DFLASH
from vllm_specext.demo.dflash import BLOCK, MASK
from vllm_specext.methods.layers import extend
from vllm_specext.tree.marginals import best_tree

Engines = Callable[..., Result]

extended = pytest.mark.extended
WINDOW = 12


@dataclass(frozen=True)
class Kind:
    layers: list[tuple[int | None, bool]]
    """Of each layer, its window, and whether it is causal."""
    section: dict[str, Any]
    """Keys of ``dflash_config``."""
    with_sinks: bool = False
    embedding: float = 1.0
    logits: tuple[float, float | None] = (1.0, None)
    """What multiplies logits, and what bounds them."""


KINDS = {
    "mixed": Kind([(WINDOW, True), (None, False)], {}),
    "windows everywhere, with sinks": Kind(
        [(WINDOW, False)] * 2,
        {"use_swa": True, "swa_window_size": WINDOW, "attention_sink_bias": True},
        with_sinks=True,
    ),
    "causal and scaled": Kind(
        [(None, True), (None, True)],
        {"causal": True, "input_embedding_scale": 1.5, "output_multiplier": 0.8, "final_logit_softcapping": 6.0},
        embedding=1.5,
        logits=(0.8, 6.0),
    ),
}


def make(kind: Kind, folder: Path) -> Path:
    config = json.loads((DFLASH / "config.json").read_text())
    config["num_hidden_layers"] = len(kind.layers)
    config["dflash_config"] |= kind.section
    windows = [window for window, _ in kind.layers]
    if None in windows and WINDOW in windows:
        names = ["full_attention" if window is None else "sliding_attention" for window in windows]
        config |= {"layer_types": names, "sliding_window": WINDOW, "use_sliding_window": True}
    tensors = load_file(DFLASH / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, tensor in list(tensors.items()):
        if name.startswith("layers.0."):
            says_little = 0.2 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
            tensors[name.replace("layers.0.", "layers.1.")] = (tensor * says_little).contiguous()
    for layer in range(2) if kind.with_sinks else ():
        tensors[f"layers.{layer}.self_attn.attention_sink_bias"] = 2 * torch.rand(4, generator=generator).half()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


class PlainDrafter(Drafter):
    """In plain torch, each layer with its own mask."""

    def __init__(self, sequence: list[int], folder: Path, kind: Kind) -> None:
        super().__init__(sequence, DFLASH)
        self.kind = kind
        self.drafter.layers.append(deepcopy(self.drafter.layers[0]))
        self.load(folder)

    def load(self, folder: Path) -> None:
        tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
        self.sinks = [tensors.pop(f"layers.{layer}.self_attn.attention_sink_bias", None) for layer in range(2)]
        self.drafter.load_state_dict(tensors)

    def seen(self, anchor: int, window: int | None, is_causal: bool) -> Tensor:
        """``[1, 1, BLOCK, anchor + BLOCK]`` bool. Where a layer is not causal, the last row says where the window
        begins."""
        row, key = anchor + torch.arange(BLOCK)[:, None], torch.arange(anchor + BLOCK)
        seen = key <= row if is_causal else torch.ones(BLOCK, anchor + BLOCK, dtype=torch.bool)
        last = row if is_causal else row[-1:]
        return (seen if window is None else seen & (last - key < window))[None, None]

    @torch.no_grad()
    def block(self, anchor: int) -> Tensor:
        ids = torch.tensor([[self.sequence[anchor], *[MASK] * (BLOCK - 1)]])
        places, before = torch.arange(anchor, anchor + BLOCK)[None], torch.arange(anchor)[None]
        text = self.drafter.hidden_norm(self.drafter.fc(self.states[:, :anchor]))
        rows = self.embedding(ids) * self.kind.embedding
        for layer, sinks, (window, is_causal) in zip(self.drafter.layers, self.sinks, self.kind.layers, strict=True):
            normed, attention = layer.input_layernorm(rows), layer.self_attn
            keys, values = extend(attention.keys_values(text, before), attention.keys_values(normed, places))
            scores = attention.queries(normed, places) @ attention.repeat(keys).transpose(2, 3)
            scores = scores / attention.head_dim**0.5
            scores = scores.masked_fill(~self.seen(anchor, window, is_causal), float("-inf"))
            if sinks is not None:
                scores = torch.cat((scores, sinks[:, None, None].expand(1, -1, BLOCK, 1)), dim=-1)
            weights = scores.softmax(dim=-1)[..., : anchor + BLOCK]
            rows = rows + attention.merge(weights @ attention.repeat(values))
            rows = rows + layer.mlp(layer.post_attention_layernorm(rows))
        return self.drafter.norm(rows)[0]

    @torch.no_grad()
    def tree(self, anchor: int, sharpness: Tensor) -> list[int]:
        multiplier, cap = self.kind.logits
        logits = self.head(self.block(anchor)[1:]) * multiplier
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)
        best = (sharpness * logits).log_softmax(dim=-1).topk(TOP_K)
        tokens, _, _ = best_tree(best.indices[None], best.values[None], NODES)
        return tokens[0].tolist()


@pytest.fixture(
    scope="module",
    params=[name if kind.with_sinks else pytest.param(name, marks=extended) for name, kind in KINDS.items()],
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def folder(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(kind, tmp_path_factory.mktemp("drafter"))


@pytest.fixture(scope="module")
def recorded(
    engines: Engines, kind: Kind, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PlainDrafter, list[Pass]]:
    path = tmp_path_factory.mktemp("passes") / "passes.pt"
    sequence, passes = recorded_drafts(engines, of_method("dflash-tree", folder, NODES, TOP_K), path)
    return PlainDrafter(sequence, folder, kind), passes


def difference(drafter: PlainDrafter, one: Pass) -> float:
    return float((drafter.block(int(one["positions"][0])) - one["predict"]).abs().max())


def test_every_block_and_draft_is_that_of_the_plain_drafter(recorded: tuple[PlainDrafter, list[Pass]]) -> None:
    drafter, passes = recorded
    assert len(passes) >= 5
    for one in passes:
        assert difference(drafter, one) < 1e-3
        assert one["tokens"][0].tolist() == drafter.tree(int(one["positions"][0]), one["sharpness"])


def test_what_is_left_out_would_be_noticed(kind: Kind, recorded: tuple[PlainDrafter, list[Pass]]) -> None:
    drafter, passes = recorded
    others = [Kind([(None, causal) for _, causal in kind.layers], {}, embedding=kind.embedding)]
    others.append(Kind([(window, not causal) for window, causal in kind.layers], {}, embedding=kind.embedding))
    others.append(Kind(kind.layers, {}, embedding=kind.embedding * 2))
    sinks = drafter.sinks
    for other in others:
        drafter.kind = other
        if other.layers != kind.layers or other.embedding != kind.embedding:
            assert max(difference(drafter, one) for one in passes) > 1e-2
    drafter.kind = kind
    if kind.with_sinks:
        drafter.sinks = [None, None]
        assert max(difference(drafter, one) for one in passes) > 1e-2
        drafter.sinks = sinks


def test_logits_that_are_scaled_otherwise_would_be_noticed(recorded: tuple[PlainDrafter, list[Pass]]) -> None:
    """Where they should be, logits as they are."""
    drafter, passes = recorded
    kind, as_they_are = drafter.kind, (1.0, None)
    logits = as_they_are if kind.logits != as_they_are else (0.8, 3.0)
    drafter.kind = Kind(kind.layers, {}, embedding=kind.embedding, logits=logits)
    trees = [drafter.tree(int(one["positions"][0]), one["sharpness"]) for one in passes]
    drafter.kind = kind
    assert trees != [one["tokens"][0].tolist() for one in passes]


@pytest.mark.parametrize(
    ("own", "options"),
    [
        ({}, {}),
        pytest.param({}, {"graphs": [2, 5, 8]}, marks=extended),
        pytest.param({"enforce_eager": False}, {}, marks=extended),
    ],
    ids=["eager", "recorded", "compiled"],
)
def test_trees_give_the_tokens_of_plain_decoding(
    engines: Engines, folder: Path, own: dict[str, Any], options: dict[str, Any]
) -> None:
    result = engines(of_method("dflash-tree", folder, 24, 4) | own, keep_async=True, **options)
    assert differing(result, engines(own)) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60
    assert result["sizes"]["24"] > 60
    assert result["counters"]["vllm:prefix_cache_hits"] > 0
    assert result["cache_groups"] == 1


@extended
def test_trees_do_where_requests_wait_for_room(engines: Engines, folder: Path) -> None:
    result = engines(of_method("dflash-tree", folder, 59, 10) | TIGHT_FOR_TREES, keep_async=True)
    assert differing(result, engines({})) == []
    assert result["counters"]["vllm:num_preemptions"] >= 1


@extended
def test_a_target_with_windows_and_sinks_does(engines: Engines, folder: Path, tmp_path: Path) -> None:
    target = {"model": str(windowed(tmp_path, sinks=True))}
    result = engines(of_method("dflash-tree", folder, 24, 4) | target, keep_async=True)
    assert differing(result, engines(target)) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60


@extended
def test_dsparks_trees_do(engines: Engines, folder: Path, kind: Kind, tmp_path: Path) -> None:
    if kind.logits != (1.0, None):
        pytest.skip("DSpark's drafters have no scales")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    for key in [key for key in config if key.startswith("speculators") or key == "transformer_layer_config"]:
        del config[key]
    config |= {"architectures": ["Qwen3DSparkModel"], "markov_rank": 8, "markov_head_type": "vanilla"}
    config |= {"sample_from_anchor": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    size, generator = (config["vocab_size"], 8), torch.Generator().manual_seed(0)
    heads = {
        f"markov_head.markov_{name}.weight": (0.4 * torch.randn(size, generator=generator)).half()
        for name in ("w1", "w2")
    }
    save_file(load_file(folder / "model.safetensors") | heads, tmp_path / "model.safetensors")
    result = engines(of_method("dspark-tree", tmp_path, 24, 4), keep_async=True)
    assert differing(result, engines({})) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 20


@extended
def test_a_deliberate_fault_is_noticed(engines: Engines, folder: Path) -> None:
    assert is_noticed(engines, engines({}), of_method("dflash-tree", folder, 24, 4), "skip_compaction")

"""A DFlash drafter of a Gemma 4, which multiplies its embeddings, as z-lab's drafters read them: what it drafts is what
plain torch drafts. Target and drafter are small and of random weights."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from tests.engine.conftest import Result, of_method
from tests.engine.test_architectures import KEYS, make
from tests.engine.test_block_windows import Kind, PlainDrafter, difference
from tests.engine.test_dflash_drafting import NODES, REQUEST, TOKENS, TOP_K
from tests.engine.test_lossless import differing
from tests.engine.test_serving_model import Pass
from tests.engine.workload import GREEDY
from vllm_specext.demo.dflash import BLOCK, MASK
from vllm_specext.methods.block.model import DFlashDrafter, Sizes
from vllm_specext.methods.layers import Rotary

Engines = Callable[..., Result]

WINDOW, READ, THETA, EPS = 12, [0, 1, 2], 10000.0, 1e-6
D = KEYS["hidden_size"]


def sizes(read: list[int]) -> Sizes:
    """Of a drafter that reads what these layers leave."""
    return Sizes(
        hidden_size=D,
        states_size=len(read) * D,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=32,
        mlp_size=256,
        rms_norm_eps=EPS,
        rotary=Rotary(THETA),
    )


SIZES = sizes(READ)
LAYERS: list[tuple[int | None, bool]] = [(WINDOW, True), (None, False)]
SECTION = {"mask_token_id": MASK, "final_logit_softcapping": 3.0}


def make_drafter(folder: Path, read: list[int] = READ) -> Path:
    torch.manual_seed(1)
    drafter = DFlashDrafter(sizes(read))
    with torch.no_grad():
        for weight in drafter.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.08)
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": SIZES.layers,
        "hidden_size": D,
        "intermediate_size": SIZES.mlp_size,
        "num_attention_heads": SIZES.heads,
        "num_key_value_heads": SIZES.kv_heads,
        "head_dim": SIZES.head_dim,
        "vocab_size": KEYS["vocab_size"],
        "max_position_embeddings": KEYS["max_position_embeddings"],
        "rms_norm_eps": EPS,
        "hidden_act": "silu",
        "rope_theta": THETA,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": WINDOW,
        "use_sliding_window": True,
        "block_size": BLOCK,
        "dflash_config": SECTION | {"target_layer_ids": read},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.contiguous() for name, tensor in drafter.state_dict().items()}, folder / "model.safetensors"
    )
    return folder


class GemmasDrafter(PlainDrafter):
    """Beside a ``target`` that transformers knows."""

    def __init__(self, sequence: list[int], target: Path, folder: Path, read: list[int] = READ) -> None:
        gemma = AutoModelForCausalLM.from_pretrained(target).float().eval().requires_grad_(False)
        hidden = gemma.model(torch.tensor([sequence]), output_hidden_states=True).hidden_states
        self.states = torch.cat([hidden[layer + 1] for layer in read], dim=-1)
        self.embedding, self.head = gemma.get_input_embeddings(), gemma.lm_head
        self.sequence = sequence
        self.kind = Kind(LAYERS, {}, logits=(1.0, SECTION["final_logit_softcapping"]))
        self.drafter = DFlashDrafter(sizes(read)).eval()
        self.load(folder)


@pytest.fixture(scope="module")
def recorded(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> tuple[GemmasDrafter, list[Pass]]:
    target = make("Gemma4", tmp_path_factory.mktemp("gemma"))
    folder = make_drafter(tmp_path_factory.mktemp("drafter"))
    path = folder / "passes.pt"
    asked = [[{"ids": REQUEST["ids"], "sampling": GREEDY | {"max_tokens": TOKENS, "ignore_eos": True}}]]
    config = of_method("dflash-tree", folder, NODES, TOP_K) | {"model": str(target)}
    result = engines(config, rounds=asked, record=str(path))
    assert differing(result, engines({"model": str(target)}, rounds=asked)) == []
    drafter = GemmasDrafter(REQUEST["ids"] + result["outputs"][0]["ids"], target, folder)
    passes = [one for one in torch.load(path, weights_only=True) if "tokens" in one and one["tokens"].numel()]
    return drafter, [one for one in passes if int(one["positions"][0]) < len(drafter.sequence)]


def test_every_block_and_draft_is_that_of_the_plain_drafter(recorded: tuple[GemmasDrafter, list[Pass]]) -> None:
    drafter, passes = recorded
    assert len(passes) >= 5
    for one in passes:
        assert difference(drafter, one) < 1e-3
        assert one["tokens"][0].tolist() == drafter.tree(int(one["positions"][0]), one["sharpness"])


def test_embeddings_that_are_read_as_they_are_would_be_noticed(recorded: tuple[GemmasDrafter, list[Pass]]) -> None:
    drafter, passes = recorded
    kind = drafter.kind
    drafter.kind = Kind(LAYERS, {}, embedding=D**-0.5)
    found = max(difference(drafter, one) for one in passes)
    drafter.kind = kind
    assert found > 1e-2

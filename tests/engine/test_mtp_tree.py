"""Trees of a target's own multi-token prediction module give the tokens of plain decoding on the real engine.

The target is made: the bundled one in MiMo's layout, whose attention has biases, with a module of random weights. So
few drafts are accepted; what is drafted is compared with the same module in plain torch.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from tests.engine.conftest import Result, any_sizes, of_method
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_serving_model import Pass
from tests.engine.test_tree_drafting import REQUEST, Drafter, Replay, accepted, drafts, record
from tests.engine.workload import TARGET, copy_tokenizer
from vllm_specext.methods.layers import KV, Attention, Rotary, extend

Engines = Callable[..., Result]

NODES, TOP_K, LEVELS = 24, 4, 6


@pytest.fixture(scope="module")
def mimo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mimo(tmp_path_factory.mktemp("mimo"))


def make_mimo(folder: Path, **keys: Any) -> Path:
    """With these ``keys`` in its configuration."""
    copy_tokenizer(folder)
    tensors = load_file(TARGET / "model.safetensors")
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float = 0.06) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).half()

    d, q, kv, mlp = 256, 256, 128, 512
    for layer in range(12):
        for name, size in {"q": q, "k": kv, "v": kv}.items():
            tensors[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = torch.zeros(size).half()
    prefix = "model.mtp_layers.0."
    shapes = {
        "token_layernorm.weight": (d,),
        "hidden_layernorm.weight": (d,),
        "final_layernorm.weight": (d,),
        "input_layernorm.weight": (d,),
        "post_attention_layernorm.weight": (d,),
        "input_proj.weight": (d, 2 * d),
        "self_attn.q_proj.weight": (q, d),
        "self_attn.k_proj.weight": (kv, d),
        "self_attn.v_proj.weight": (kv, d),
        "self_attn.q_proj.bias": (q,),
        "self_attn.k_proj.bias": (kv,),
        "self_attn.v_proj.bias": (kv,),
        "self_attn.o_proj.weight": (d, q),
        "mlp.gate_proj.weight": (mlp, d),
        "mlp.up_proj.weight": (mlp, d),
        "mlp.down_proj.weight": (d, mlp),
    }
    for name, shape in shapes.items():
        tensors[prefix + name] = torch.ones(shape).half() if "norm" in name else random(*shape)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((TARGET / "config.json").read_text())
    config |= {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "attention_bias": True,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config | keys))
    return folder


def trees(mimo: Path, nodes: int = NODES, top_k: int = TOP_K) -> dict[str, Any]:
    own = of_method("mtp-tree", mimo, nodes, top_k)
    del own["speculative_config"]["model"]
    own["speculative_config"]["tree_depth"] = LEVELS
    return own | {"model": str(mimo)}


@pytest.mark.parametrize(
    ("nodes", "top_k"), [(NODES, TOP_K), pytest.param(4, 1, marks=pytest.mark.extended)], ids=["tree", "chain"]
)
def test_drafts_give_the_tokens_of_plain_decoding(engines: Engines, mimo: Path, nodes: int, top_k: int) -> None:
    result = engines(trees(mimo, nodes, top_k), keep_async=True)
    assert differing(result, engines({"model": str(mimo)})) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 0
    assert result["sizes"][str(nodes)] > 60


@pytest.mark.extended
def test_any_sizes_and_depths_give_the_tokens_of_plain_decoding(engines: Engines, mimo: Path) -> None:
    result = engines(any_sizes(trees(mimo)), keep_async=True, sabotage="draw_sizes")
    assert differing(result, engines({"model": str(mimo)})) == []
    assert len([depth for depth, count in result["depths"].items() if count > 10]) >= 2


@pytest.mark.extended
def test_a_deliberate_fault_in_a_tree_is_noticed(engines: Engines, mimo: Path) -> None:
    assert is_noticed(engines, engines({"model": str(mimo)}), trees(mimo), "accept_the_best_node_of_every_tree")


def module(folder: Path) -> Drafter:
    """The module in plain torch."""
    prefix = "model.mtp_layers.0."
    tensors = load_file(folder / "model.safetensors")
    own = {name.removeprefix(prefix): x.float() for name, x in tensors.items() if name.startswith(prefix)}
    embedding = tensors["model.embed_tokens.weight"].float()
    attention = Attention(256, 4, 2, 64, Rotary(10000.0), qkv_bias=True)
    attention.load_state_dict(
        {name.removeprefix("self_attn."): x for name, x in own.items() if name.startswith("self_attn.")}
    )

    def norm(x: Tensor, name: str) -> Tensor:
        return rms_norm(x, (256,), own[f"{name}.weight"], 1e-5)

    def run(ids: Tensor, features: Tensor, places: Tensor, mask: Tensor, past: KV | None) -> tuple[Tensor, Tensor, KV]:
        tokens = torch.where(places[..., None] == 0, 0, embedding[ids])
        fused = torch.cat((norm(features, "hidden_layernorm"), norm(tokens, "token_layernorm")), dim=-1)
        hidden = fused @ own["input_proj.weight"].T
        normed = norm(hidden, "input_layernorm")
        kv = extend(past, attention.keys_values(normed, places))
        hidden = hidden + attention.attend(attention.queries(normed, places), kv, mask)
        normed = norm(hidden, "post_attention_layernorm")
        gated = silu(normed @ own["mlp.gate_proj.weight"].T) * (normed @ own["mlp.up_proj.weight"].T)
        made = norm(hidden + gated @ own["mlp.down_proj.weight"].T, "final_layernorm")
        return made, made, kv

    return run


@pytest.fixture(scope="module")
def recorded(engines: Engines, mimo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], list[Pass]]:
    return record(engines, tmp_path_factory.mktemp("mtp") / "passes.pt", trees(mimo))


def test_every_level_of_every_draft_is_that_of_plain_torch(mimo: Path, recorded: tuple[list[int], list[Pass]]) -> None:
    sequence, passes = recorded
    assert sequence[: len(REQUEST["ids"])] == REQUEST["ids"]
    replay = Replay(module(mimo))
    made = drafts(passes)
    assert len(made) >= 5
    for first, levels in made:
        replay.draft(accepted(first, levels), levels)
    assert replay.largest < 1e-3

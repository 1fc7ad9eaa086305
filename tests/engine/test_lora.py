"""Requests with and without a LoRA adapter, in the same batches, get the tokens of plain decoding from draft trees.

The drafter knows nothing of adapters, so it is worse at guessing what an adapted target says, never wrong about it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.engine.conftest import CHAIN, ROUND, Result
from tests.engine.p_eagle import p_eagle_tree
from tests.engine.pard import pard_tree
from tests.engine.test_dspark import dspark, folder  # noqa: F401 - a fixture
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_mtp_tree import mimo  # noqa: F401 - a fixture
from tests.engine.test_mtp_tree import trees as mtp
from tests.engine.workload import DFLASH, EAGLE3, TARGET

Engines = Callable[..., Result]
RANK = 8
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens"]
# On a CPU vLLM gives requests without an adapter the last of the adapters' places, so that one has to stay empty.
LORA: dict[str, Any] = {"enable_lora": True, "max_lora_rank": RANK, "max_loras": 2}
NAMED: dict[str, Any] = LORA | {"lora_target_modules": MODULES}
"""For plain decoding: where adapters may have the output layer, vLLM fails at log probabilities of prompts on a CPU."""
TREE = CHAIN | {
    "num_speculative_tokens": 24,
    "tree_top_k": 4,
    "tree_depth": 6,
    "num_speculative_tokens_per_batch_size": [[1, 8, 24]],
}
ASKED = ROUND[:24]
OTHERS = {"eagle3-tree": (EAGLE3, 6), "dflash-tree": (DFLASH, 4), "draft-model-tree": (TARGET, 6)}
"""With how many levels they draft."""


def differing(one: Result, other: Result) -> set[int]:
    """Indices of requests whose tokens differ."""
    pairs = zip(one["outputs"], other["outputs"], strict=True)
    return {index for index, (a, b) in enumerate(pairs) if a["ids"] != b["ids"]}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random adapter of all of the target's matrices but the output layer, in PEFT's format, strong enough to change
    what it says."""
    return make_adapter(tmp_path_factory.mktemp("adapter"), {})


def make_adapter(made: Path, others: dict[str, tuple[int, int]], embedding: bool = True) -> Path:
    """One in ``made``, also of ``others``: widths of what goes in and of what comes out, by the module's name."""
    config = json.loads((TARGET / "config.json").read_text())
    width, inner = config["hidden_size"], config["intermediate_size"]
    heads, shared = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
    inside = {
        "self_attn.q_proj": (width, heads),
        "self_attn.k_proj": (width, shared),
        "self_attn.v_proj": (width, shared),
        "self_attn.o_proj": (heads, width),
        "mlp.gate_proj": (width, inner),
        "mlp.up_proj": (width, inner),
        "mlp.down_proj": (inner, width),
    }
    layers = range(config["num_hidden_layers"])
    sizes = {f"model.layers.{layer}.{module}": size for layer in layers for module, size in inside.items()}
    noise = torch.Generator().manual_seed(0)
    tensors = {}
    for module, (taken, given) in (sizes | others).items():
        name = f"base_model.model.{module}"
        tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, taken, generator=noise) / taken**0.5
        tensors[f"{name}.lora_B.weight"] = torch.randn(given, RANK, generator=noise) / RANK**0.5 / 8
    if embedding:
        name = "base_model.model.model.embed_tokens.lora_embedding_"
        tensors[f"{name}A"] = torch.randn(RANK, config["vocab_size"], generator=noise)
        tensors[f"{name}B"] = torch.randn(width, RANK, generator=noise) / 1000
    save_file(tensors, made / "adapter_model.safetensors")
    keys = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "bias": "none"}
    (made / "adapter_config.json").write_text(json.dumps(keys | {"target_modules": [*MODULES, *others]}))
    return made


def every_other(adapter: Path) -> list[list[dict[str, Any]]]:
    return [[r | {"lora": str(adapter)} if index % 2 else r for index, r in enumerate(ASKED)]]


@pytest.mark.parametrize(
    "own",
    [
        {},
        *(
            pytest.param({"method": method, "model": str(drafter), "tree_depth": depth}, marks=pytest.mark.extended)
            for method, (drafter, depth) in OTHERS.items()
        ),
    ],
    ids=["griffin", *OTHERS],
)
def test_trees_with_an_adapter_give_the_tokens_of_plain_decoding_with_it(
    engines: Engines, adapter: Path, own: dict[str, Any]
) -> None:
    plain = engines(NAMED, rounds=every_other(adapter))
    trees = engines(LORA | {"speculative_config": TREE | own}, rounds=every_other(adapter))
    assert plain["v2"]
    assert trees["v2"]
    assert differing(trees, plain) == set()
    assert trees["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60


@pytest.mark.extended
def test_made_drafters_draft_for_an_adapted_target(
    engines: Engines,
    adapter: Path,
    folder: Path,  # noqa: F811
    mimo: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """MiMo's target has the same layers, to which an adapter fits, but vLLM adapts no embedding of it."""
    for made in (dspark(folder, 24, 4), p_eagle_tree(tmp_path / "drafter"), pard_tree(tmp_path / "pard")):
        result = engines(LORA | made, rounds=every_other(adapter))
        assert differing(result, engines(NAMED, rounds=every_other(adapter))) == set()
        assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 10
    (tmp_path / "of layers").mkdir()
    asked = every_other(make_adapter(tmp_path / "of layers", {}, embedding=False))
    result = engines(LORA | mtp(mimo), rounds=asked)
    assert differing(result, engines(NAMED | {"model": str(mimo)}, rounds=asked)) == set()
    assert result["sizes"]["24"] > 60


def test_modules_may_be_named(engines: Engines, adapter: Path) -> None:
    result = engines(NAMED | {"speculative_config": TREE}, rounds=every_other(adapter))
    assert differing(result, engines(NAMED, rounds=every_other(adapter))) == set()


def test_an_adapter_of_the_output_layer_is_refused(engines: Engines, tmp_path: Path) -> None:
    config = json.loads((TARGET / "config.json").read_text())
    asked = every_other(make_adapter(tmp_path, {"lm_head": (config["hidden_size"], config["vocab_size"])}))
    with pytest.raises(AssertionError, match=r"received .*lm_head"):
        engines(LORA | {"speculative_config": TREE}, rounds=asked)


def test_predictions_with_an_adapter_give_the_tokens_of_plain_decoding_with_it(engines: Engines, adapter: Path) -> None:
    (asked,) = every_other(adapter)
    plain = engines(NAMED, rounds=[asked])
    result = engines(LORA | GIVEN, rounds=[predicting(asked, plain["outputs"])])
    assert differing(result, plain) == set()
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 150


def test_the_adapter_changes_its_own_requests_and_no_others(engines: Engines, adapter: Path) -> None:
    """Otherwise the test above would compare the target with itself."""
    changed = differing(engines(NAMED, rounds=every_other(adapter)), engines(NAMED, rounds=[ASKED]))
    assert len(changed) >= 8
    assert all(index % 2 for index in changed)

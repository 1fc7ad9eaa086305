"""DFlash and DSpark checkpoints in the layouts in which they are released are accepted, and what cannot be served is
refused by name."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.unit.eagle_folders import (
    CONTEXT,
    HEADS,
    KV_HEADS,
    LLAMA,
    MLP,
    TARGET_D,
    TARGET_LAYERS,
    VOCABULARY,
    Config,
    D,
    Edit,
    Tensors,
    add,
    drop,
    edit_config,
    write,
)
from vllm_specext.engine.registrations import register_serving_models
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.block import prepare as module
from vllm_specext.methods.prepared import Prepared
from vllm_specext.options.stock import BlockOptions, DFlashTreeOptions, DSparkTreeOptions

LAYERS, BLOCK, READ, DRAFTED, RANK = 2, 8, [1, 5, 9], 24, 4

QWEN: Config = LLAMA | {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": D // HEADS,
    "attention_bias": False,
}
RELEASED: Config = QWEN | {
    "block_size": BLOCK,
    "num_target_layers": TARGET_LAYERS,
    "dflash_config": {"mask_token_id": VOCABULARY - 1, "target_layer_ids": READ},
}
"""As z-lab writes it."""
SPECULATORS: Config = {
    "architectures": ["DFlashDraftModel"],
    "block_size": BLOCK,
    "aux_hidden_state_layer_ids": [layer + 1 for layer in READ],
    "mask_token_id": VOCABULARY - 1,
    "draft_vocab_size": DRAFTED,
    "speculators_config": {
        "algorithm": "dflash",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": BLOCK - 1}],
        "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "some/target"},
    },
    "speculators_model_type": "dflash",
    "speculators_version": "0.9.0",
    "transformer_layer_config": {key: value for key, value in QWEN.items() if key != "architectures"},
}
DSPARK: Config = QWEN | {
    "architectures": ["Qwen3DSparkModel"],
    "block_size": BLOCK,
    "mask_token_id": VOCABULARY - 1,
    "target_layer_ids": READ,
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
"""As DeepSeek writes it."""
DSPARK_OF_SPECULATORS: Config = SPECULATORS | {
    "architectures": ["Qwen3DSparkModel"],
    "speculators_config": SPECULATORS["speculators_config"] | {"algorithm": "dspark"},
    "speculators_model_type": "dspark",
    "markov_rank": RANK,
    "enable_confidence_head": False,
}


@pytest.fixture(autouse=True)
def any_target(monkeypatch: pytest.MonkeyPatch) -> None:
    register_serving_models()
    monkeypatch.setattr(module, "check_target", lambda method, launch: None)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # vLLM's reader tries again


def dflash(d: int = D, states: int = len(READ)) -> Tensors:
    width = D // HEADS
    layer = {
        "self_attn.q_proj": (HEADS * width, d),
        "self_attn.k_proj": (KV_HEADS * width, d),
        "self_attn.v_proj": (KV_HEADS * width, d),
        "self_attn.o_proj": (d, HEADS * width),
        "self_attn.q_norm": (width,),
        "self_attn.k_norm": (width,),
        "mlp.gate_proj": (MLP, d),
        "mlp.up_proj": (MLP, d),
        "mlp.down_proj": (d, MLP),
        "input_layernorm": (d,),
        "post_attention_layernorm": (d,),
    }
    shapes = {"fc.weight": (d, states * TARGET_D), "hidden_norm.weight": (d,), "norm.weight": (d,)}
    shapes |= {f"layers.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in layer.items()}
    return {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}


def own_vocabulary() -> Tensors:
    tokens = torch.arange(0, VOCABULARY, 2)[:DRAFTED]
    tokens = torch.cat((tokens, torch.arange(1, VOCABULARY, 2)))[:DRAFTED].sort().values
    return {
        "d2t": tokens - torch.arange(DRAFTED),
        "t2d": torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, tokens, True),
        "lm_head.weight": torch.zeros(DRAFTED, D),
        "embed_tokens.weight": torch.zeros(VOCABULARY, D),
    }


def markov(drafted: int = VOCABULARY) -> Tensors:
    sizes = {"w1": VOCABULARY, "w2": drafted}
    return {f"markov_head.markov_{name}.weight": torch.zeros(size, RANK) for name, size in sizes.items()}


def confidence() -> Tensors:
    return {
        "confidence_head.proj.weight": torch.zeros(1, D + RANK),
        "confidence_head.proj.bias": torch.zeros(1),
    }


def prepared(folder: Path, options: type[BlockOptions] = DFlashTreeOptions, **keys: Any) -> Prepared:
    target = SimpleNamespace(
        trust_remote_code=False,
        max_model_len=CONTEXT,
        get_vocab_size=lambda: VOCABULARY,
        get_hidden_size=lambda: TARGET_D,
        get_total_num_hidden_layers=lambda: TARGET_LAYERS,
    )
    launch: Any = SimpleNamespace(model=target)
    return module.prepare(options(model=str(folder), **keys), launch)


def released(folder: Path) -> Path:
    return write(folder, RELEASED, dflash())


@pytest.mark.parametrize(
    ("config", "tensors"),
    [(RELEASED, dflash()), (SPECULATORS, dflash() | own_vocabulary())],
    ids=["z-lab", "speculators"],
)
def test_released_layouts_are_accepted(config: Config, tensors: Tensors, tmp_path: Path) -> None:
    made = prepared(write(tmp_path, config, tensors))
    assert made.overrides["eagle_aux_hidden_state_layer_ids"] == [2, 6, 10]
    assert made.overrides["causal_layers"] == [False] * LAYERS
    assert made.overrides["draft_scales"]["reads_as_target"] is (config is RELEASED)
    assert isinstance(made.options, DFlashTreeOptions)
    assert made.options.tree is not None
    assert (made.options.tree.depth, made.options.lookahead) == (BLOCK - 1, BLOCK)


@pytest.mark.parametrize(
    ("config", "tensors", "levels"),
    [
        (DSPARK, dflash() | markov() | confidence(), BLOCK),
        (DSPARK | {"architectures": ["DSparkDraftModel"]}, dflash() | markov() | confidence(), BLOCK),
        (DSPARK | {"sample_from_anchor": False}, dflash() | markov() | confidence(), BLOCK - 1),
        (DSPARK_OF_SPECULATORS, dflash() | own_vocabulary() | markov(DRAFTED), BLOCK - 1),
    ],
    ids=["DeepSeek", "another name", "with a bonus token", "speculators"],
)
def test_dspark_is_accepted(config: Config, tensors: Tensors, levels: int, tmp_path: Path) -> None:
    made = prepared(write(tmp_path, config, tensors), DSparkTreeOptions)
    assert made.overrides["eagle_aux_hidden_state_layer_ids"] == [2, 6, 10]
    assert made.overrides["sample_from_anchor"] is (levels == BLOCK)
    assert isinstance(made.options, DSparkTreeOptions)
    assert made.options.tree_depth == levels


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit_config(markov_head_type="gated"), ["markov_head_type is 'gated'", "'vanilla' alone"]),
        (edit_config(markov_rank=None), ["markov_rank is None"]),
        (edit_config(markov_rank=RANK + 1), ["markov_head.markov_w1.weight", "expected"]),
        (drop("markov_head.markov_w2.weight"), ["markov_head.markov_w2.weight"]),
        (edit_config(enable_confidence_head=False), ["confidence_head", "enable_confidence_head = true"]),
        (edit_config(architectures=["Gemma4DSparkModel"]), ["Gemma4DSparkModel", "does not support"]),
    ],
)
def test_a_wrong_markov_head_is_refused_by_name(change: Edit, words: list[str], tmp_path: Path) -> None:
    write(tmp_path, DSPARK, dflash() | markov() | confidence())
    change(tmp_path)
    with pytest.raises(ConfigurationError) as raised:
        prepared(tmp_path, DSparkTreeOptions)
    for word in words:
        assert word in str(raised.value)


def test_the_users_depth_is_kept(tmp_path: Path) -> None:
    options = prepared(released(tmp_path), tree_depth=3).options
    assert isinstance(options, DFlashTreeOptions)
    assert (options.tree_depth, options.lookahead) == (3, 4)


def test_a_chain_is_as_long_as_the_user_says(tmp_path: Path) -> None:
    options = prepared(released(tmp_path), tree_top_k=1, num_speculative_tokens=5).options
    assert isinstance(options, DFlashTreeOptions)
    assert (options.tree, options.lookahead) == (None, 6)


def section(**changes: Any) -> Edit:
    return edit_config(dflash_config=RELEASED["dflash_config"] | changes)


def mask_embedding(folder: Path) -> None:
    torch.save(torch.zeros(D), folder / "mask_embedding.pt")


REFUSED: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "no block": (edit_config(block_size=...), ["block_size is None", "2 to"]),
    "a huge block": (edit_config(block_size=10**6), ["block_size is 1000000"]),
    "no mask token": (section(mask_token_id=None), ["dflash_config.mask_token_id is None"]),
    "a mask token too many": (section(mask_token_id=VOCABULARY), [f"mask_token_id is {VOCABULARY}", "below"]),
    "no layers": (section(target_layer_ids=[]), ["target_layer_ids is []", "list of integers"]),
    "a layer too many": (section(target_layer_ids=[1, 5, 12]), ["target_layer_ids is [1, 5, 12]", "0 to 11"]),
    "layers twice": (section(target_layer_ids=[1, 5, 5]), ["ascending"]),
    "another target": (edit_config(num_target_layers=30), ["num_target_layers is 30", "12 layers"]),
    "no states": (section(use_aux_hidden_state=False), ["use_aux_hidden_state is False", "true alone"]),
    "drafts of the anchor": (section(sample_from_anchor=True), ["sample_from_anchor is True", "false alone"]),
    "sinks without tensors": (section(attention_sink_bias=True), ["layers.0.self_attn.attention_sink_bias"]),
    "tensors without sinks": (
        add(layers__0__self_attn__attention_sink_bias=torch.zeros(HEADS)),
        ["layers.0.self_attn.attention_sink_bias"],
    ),
    "half causal": (section(causal="no"), ["causal is 'no'"]),
    "another kind": (edit_config(architectures=["LiLiCorrDraftModel"]), ["LiLiCorrDraftModel", "does not support"]),
    "quantised": (
        edit_config(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"}),
        ["quantization_config"],
    ),
    "another activation": (edit_config(hidden_act="gelu"), ["hidden_act is 'gelu'"]),
    "another vocabulary": (edit_config(vocab_size=VOCABULARY + 1), [f"vocab_size is {VOCABULARY + 1}"]),
    "another hidden size": (edit_config(hidden_size=24), ["hidden_size is 24", "target_hidden_size"]),
    "a wrong target size": (edit_config(target_hidden_size=24), ["target_hidden_size is 24"]),
    "a tensor less": (drop("hidden_norm.weight"), ["hidden_norm.weight"]),
    "a wrong shape": (add(fc__weight=torch.zeros(D, 2 * TARGET_D)), ["fc.weight", "expected"]),
    "a bias": (add(layers__0__self_attn__q_proj__bias=torch.zeros(D)), ["q_proj.bias", "bias"]),
    "a tensor of another kind": (
        add(markov_head__markov_w1__weight=torch.zeros(VOCABULARY, 4)),
        ["markov_head.markov_w1.weight", "DSpark", "'dspark-tree'"],
    ),
    "NaN": (add(norm__weight=torch.full((D,), float("nan"))), ["norm.weight"]),
    "mask tokens' own file": (mask_embedding, ["mask_embedding.pt", "not supported"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_by_name(name: str, tmp_path: Path) -> None:
    damage, words = REFUSED[name]
    damage(released(tmp_path))
    with pytest.raises(ConfigurationError) as raised:
        prepared(tmp_path)
    message = str(raised.value)
    assert message.endswith(".")
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"tree_depth": BLOCK}, ["'tree_depth' is 8", "block_size 8", "at most 7"]),
        ({"tree_top_k": 1, "num_speculative_tokens": BLOCK}, ["'num_speculative_tokens' is 8", "at most 7"]),
        ({"tree_top_k": VOCABULARY + 1}, ["'tree_top_k'", f"{VOCABULARY} tokens"]),
    ],
)
def test_drafts_that_are_longer_than_a_block_are_refused(keys: Any, words: list[str], tmp_path: Path) -> None:
    released(tmp_path)
    with pytest.raises(ConfigurationError) as raised:
        prepared(tmp_path, **keys)
    for word in words:
        assert word in str(raised.value)

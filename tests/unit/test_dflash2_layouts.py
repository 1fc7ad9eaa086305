"""Checkpoints of DFlash's second kind are accepted as z-lab and speculators write them, and what cannot be served is
refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.eagle_folders import VOCABULARY, Config, D, Edit, Tensors, add, drop, edit_config, write
from tests.unit.test_dflash_layouts import (  # noqa: F401 - a fixture
    BLOCK,
    LAYERS,
    READ,
    RELEASED,
    SPECULATORS,
    any_target,
    dflash,
    prepared,
)
from vllm_specext.errors import ConfigurationError
from vllm_specext.options.stock import DFlashTreeOptions

TAPS, GROUP, RANK, CANDIDATES = 2, 4, 3, 6
OWN: Config = {
    "conv_kernel_size": TAPS,
    "conv_group_size": GROUP,
    "selector_rank": RANK,
    "selector_top_k": CANDIDATES,
}
SECTION: Config = RELEASED["dflash_config"] | OWN | {"block_size": BLOCK, "final_logit_softcapping": 20.0}
ZLAB: Config = {key: value for key, value in RELEASED.items() if key != "block_size"} | {
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": SECTION,
    "is_causal": False,
}
OF_SPECULATORS: Config = (
    SPECULATORS
    | OWN
    | {
        "architectures": ["DFlash2DraftModel"],
        "draft_vocab_size": VOCABULARY,
        "sliding_window_non_causal": True,
        "speculators_config": SPECULATORS["speculators_config"] | {"algorithm": "dflash2"},
        "speculators_model_type": "dflash2",
    }
)


def dflash2() -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {
        "candidate_selector.predecessor_codebook": (VOCABULARY, RANK),
        "candidate_selector.successor_codebook": (VOCABULARY, RANK),
        "candidate_selector.hidden_projection.weight": (RANK, D),
    }
    for layer in range(LAYERS):
        for name in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{layer}.{name}.base_kernel"] = (2, TAPS, D)
            shapes[f"layers.{layer}.{name}.kernel_projection.weight"] = (2 * TAPS * (D // GROUP), D)
    return dflash() | {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}


@pytest.mark.parametrize("config", [ZLAB, OF_SPECULATORS], ids=["z-lab", "speculators"])
def test_released_layouts_are_accepted(config: Config, tmp_path: Path) -> None:
    made = prepared(write(tmp_path, config, dflash2()))
    assert made.overrides["eagle_aux_hidden_state_layer_ids"] == [layer + 1 for layer in READ]
    assert made.overrides["causal_layers"] == [False] * LAYERS
    assert made.overrides["block_rows"] == BLOCK
    assert made.overrides["draft_scales"]["final_logit_softcapping"] is None  # vLLM's class reads it itself
    assert isinstance(made.options, DFlashTreeOptions)
    assert (made.options.tree_depth, made.options.tree_top_k) == (BLOCK - 1, CANDIDATES)


def test_a_shorter_block_is_convolved(tmp_path: Path) -> None:
    assert prepared(write(tmp_path, ZLAB, dflash2()), tree_depth=3).overrides["block_rows"] == 4


def test_deep_trees_have_fewer_children_where_the_user_names_no_number(tmp_path: Path) -> None:
    """As many as one launch for a level takes."""
    deep = ZLAB | {"dflash_config": SECTION | {"block_size": 16, "selector_top_k": 16}}
    write(tmp_path, deep, dflash2())
    for keys, children in (({}, 8), ({"tree_top_k": 12}, 12), ({"tree_depth": 7}, 10)):
        options = prepared(tmp_path, **keys).options
        assert isinstance(options, DFlashTreeOptions)
        assert options.tree_top_k == children


def section(**changes: Any) -> Edit:
    return edit_config(dflash_config=SECTION | changes)


@pytest.mark.parametrize(
    ("change", "keys", "words"),
    [
        (section(conv_kernel_size=None), {}, ["dflash_config.conv_kernel_size is None", "at most 65"]),
        (section(conv_group_size=5), {}, ["conv_group_size is 5", "does not divide hidden_size = "]),
        (section(selector_rank=0), {}, ["dflash_config.selector_rank is 0", "positive integer"]),
        (section(selector_top_k=65), {}, ["dflash_config.selector_top_k is 65", "at most 64"]),
        (section(), {"tree_top_k": 7}, ["'tree_top_k' is 7", "selector_top_k 6"]),
        (edit_config(draft_vocab_size=24), {}, ["draft_vocab_size is 24", "score all"]),
        (drop("layers.1.mlp_conv.base_kernel"), {}, ["layers.1.mlp_conv.base_kernel"]),
        (
            add(candidate_selector__successor_codebook=torch.zeros(VOCABULARY, 2)),
            {},
            ["candidate_selector.successor_codebook", "expected"],
        ),
        (edit_config(architectures=["DFlashDraftModel"]), {}, ["candidate_selector.", "DFlash2DraftModel"]),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    change: Edit, keys: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    change(write(tmp_path, ZLAB, dflash2()))
    with pytest.raises(ConfigurationError) as raised:
        prepared(tmp_path, **keys)
    message = str(raised.value)
    assert message.endswith(".")
    for word in words:
        assert word in message

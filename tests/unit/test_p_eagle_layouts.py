"""P-EAGLE checkpoints in the layouts in which they are released are accepted, and what cannot be served is refused by
name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.eagle_folders import (
    DRAFTED,
    LLAMA,
    OWN_VOCABULARY,
    VOCABULARY,
    D,
    Edit,
    add,
    drop,
    eagle3,
    edit_config,
    nested,
    prepared,
    refusal,
    two_layers,
    write,
)
from vllm_specext.engine.registrations import register_drafter_formats
from vllm_specext.methods.eagle import prepare as module

MASK = VOCABULARY - 1
NOT_KNOWN = {"mask_hidden": torch.zeros(1, 3 * D)}
RELEASED = LLAMA | OWN_VOCABULARY | {"ptd_token_id": MASK, "parallel_drafting": True}
SPECULATORS = nested(
    architectures=["PEagleDraftModel"],
    mask_token_id=MASK,
    speculators_model_type="peagle",
)
EMBEDDING = {"embed_tokens.weight": torch.zeros(VOCABULARY, D)}


@pytest.fixture(autouse=True)
def any_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "check_target", lambda method, launch: None)


SOUND: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the first that were released": (RELEASED, eagle3() | NOT_KNOWN),
    "several layers": (RELEASED | {"num_hidden_layers": 2}, two_layers() | NOT_KNOWN),
    "another name for the token": (
        LLAMA | OWN_VOCABULARY | {"pard_token": MASK},
        eagle3() | {"mask_hidden": torch.zeros(1, 1, 3 * D)},
    ),
    "speculators": (SPECULATORS, eagle3("layers.0.") | EMBEDDING | NOT_KNOWN),
    "speculators with our name": (
        SPECULATORS | {"speculators_model_type": "peagle-tree"},
        eagle3("layers.0.") | EMBEDDING | NOT_KNOWN,
    ),
}


@pytest.mark.parametrize("layout", SOUND)
def test_released_layouts_are_accepted(layout: str, tmp_path: Path) -> None:
    register_drafter_formats()
    config, tensors = SOUND[layout]
    overrides = prepared(write(tmp_path / "drafter", config, tensors), "peagle-tree")
    assert overrides["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]


WRONG: dict[str, tuple[Edit, list[str]]] = {
    "one after another": (edit_config(ptd_token_id=...), ["mask_token_id, pard_token, ptd_token_id", "'eagle3-tree'"]),
    "a token too large": (edit_config(ptd_token_id=VOCABULARY), [f"ptd_token_id is {VOCABULARY}", "below vocab_size"]),
    "a token that is none": (edit_config(ptd_token_id="3"), ["ptd_token_id is '3'", "below vocab_size"]),
    "no feature": (drop("mask_hidden"), ["mask_hidden"]),
    "a feature of another width": (
        add(mask_hidden=torch.zeros(1, D)),
        ["mask_hidden", f"[1, {D}]; expected [1, {3 * D}]"],
    ),
    "a feature that is no number": (add(mask_hidden=torch.full((1, 3 * D), torch.nan)), ["mask_hidden", "NaN"]),
    "another type of speculators": (
        edit_config(**nested(), ptd_token_id=MASK, model_type=...),
        ["'eagle3'", "'peagle' and 'peagle-tree'"],
    ),
    "too many children": (edit_config(draft_vocab_size=DRAFTED), ["tree_top_k"]),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_cannot_be_served_is_refused_by_name(fault: str, tmp_path: Path) -> None:
    edit, named = WRONG[fault]
    folder = write(tmp_path / "drafter", RELEASED, eagle3() | NOT_KNOWN)
    edit(folder)
    message = refusal(folder, "peagle-tree", **({"tree_top_k": DRAFTED + 1} if fault == "too many children" else {}))
    assert all(part in message for part in named), message


@pytest.mark.parametrize("config", [RELEASED, SPECULATORS], ids=["released", "speculators"])
def test_other_methods_name_the_one_that_serves_it(config: dict[str, Any], tmp_path: Path) -> None:
    message = refusal(write(tmp_path / "drafter", config, eagle3() | NOT_KNOWN))
    assert "P-EAGLE" in message
    assert "'peagle-tree'" in message

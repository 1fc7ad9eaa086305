"""EAGLE drafters with multi-head latent attention (MLA): for which targets they are, and the tensors they have."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.eagle_folders import (
    CONTEXT,
    KIMI,
    LLAMA,
    Edit,
    drop,
    eagle1,
    edit_config,
    kimi,
    prepared,
    refusal,
    write,
)
from vllm_specext.methods.eagle import prepare as module


@pytest.fixture(autouse=True)
def any_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "check_target", lambda method, launch: None)


def test_drafters_with_latent_attention_are_for_targets_with_it(tmp_path: Path) -> None:
    write(tmp_path, LLAMA | KIMI, kimi())
    found = prepared(tmp_path, latent=True)
    assert (found["eagle_aux_hidden_state_layer_ids"], found["max_position_embeddings"]) == ([2, 5, 8], CONTEXT)
    assert refusal(tmp_path).endswith(
        "(MLA), but the target has none; such drafters are allowed for targets that have it."
    )


@pytest.mark.parametrize(
    ("keys", "edit", "fragments"),
    [
        ({}, drop("layers.0.self_attn.kv_b_proj.weight"), ["kv_b_proj"]),
        ({"v_head_dim": 4}, None, ["kv_b_proj.weight", "[36, 8]", "[32, 8]"]),
        ({"q_lora_rank": None}, None, ["q_proj"]),
        ({"kv_lora_rank": 0}, None, ["kv_lora_rank is 0"]),
        ({"qk_rope_head_dim": "2"}, None, ["qk_rope_head_dim"]),
    ],
    ids=["a tensor less", "other heads", "queries at once", "no rank", "a size as text"],
)
def test_their_tensors_are_compared(
    keys: dict[str, Any], edit: Edit | None, fragments: list[str], tmp_path: Path
) -> None:
    write(tmp_path, LLAMA | KIMI, kimi())
    edit_config(**keys)(tmp_path)
    if edit is not None:
        edit(tmp_path)
    message = refusal(tmp_path, latent=True)
    assert [fragment for fragment in fragments if fragment not in message] == [], message


def test_trees_of_other_methods_drafters_with_latent_attention_are_refused(tmp_path: Path) -> None:
    edit_config(architectures=["EagleMistralLarge3ForCausalLM"])(write(tmp_path, LLAMA, eagle1()))
    assert "only method 'eagle3-tree' drafts" in refusal(tmp_path, "eagle-tree", latent=True)

"""EAGLE drafters with multi-head latent attention (MLA): for which targets they are, and the tensors they have."""

from pathlib import Path
from typing import Any

import pytest
from vllm.transformers_utils.config import get_config
from vllm.transformers_utils.configs.eagle import EAGLEConfig

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


def test_they_are_for_targets_that_have_it(tmp_path: Path) -> None:
    write(tmp_path, LLAMA | KIMI, kimi())
    found = prepared(tmp_path, latent=True)
    assert (found["eagle_aux_hidden_state_layer_ids"], found["max_position_embeddings"]) == ([2, 5, 8], CONTEXT)
    assert refusal(tmp_path).endswith(
        "(MLA), but the target has none; such drafters are allowed for targets that have it."
    )


def test_vllm_takes_the_class_that_was_looked_at(tmp_path: Path) -> None:
    write(tmp_path, LLAMA | KIMI, kimi())
    made = EAGLEConfig(get_config(str(tmp_path), trust_remote_code=False), method="eagle3", model_type="eagle")
    assert made.architectures == KIMI["architectures"]


@pytest.mark.parametrize(
    ("keys", "edit", "fragments"),
    [
        ({}, drop("layers.0.self_attn.kv_b_proj.weight"), ["kv_b_proj"]),
        ({"q_lora_rank": 7}, None, ["q_a_proj.weight", "[6, 32]", "[7, 32]"]),
        ({"q_lora_rank": None}, None, ["q_lora_rank is None; expected a positive integer"]),
        ({"kv_lora_rank": 0}, None, ["kv_lora_rank is 0"]),
        ({"qk_rope_head_dim": "2"}, None, ["qk_rope_head_dim"]),
        ({"v_head_dim": 4}, None, ["v_head_dim is 4 but the target's is 5"]),
        ({"num_attention_heads": 2}, None, ["num_attention_heads is 2 but the target's is 4"]),
        ({"model_type": "deepseek_v3"}, None, ["model_type is 'deepseek_v3'", "'kimi_k2' and 'deepseek_v2'"]),
        ({"attention_bias": True}, None, ["attention_bias is True"]),
        ({"norm_before_fc": True}, None, ["norm_before_fc is True"]),
        ({"eagle_config": {"norm_before_fc": True}}, None, ["norm_before_fc is True"]),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, None, ["rope_type is 'linear'", "'yarn'"]),
        (
            {"rope_scaling": KIMI["rope_scaling"] | {"factor": 1.5}},
            None,
            ["reach 48", "--max-model-len is 64"],
        ),
    ],
    ids=lambda value: next(iter(value), "a tensor less") if isinstance(value, dict) else "",
)
def test_what_is_not_served_is_refused(
    keys: dict[str, Any], edit: Edit | None, fragments: list[str], tmp_path: Path
) -> None:
    write(tmp_path, LLAMA | KIMI, kimi())
    edit_config(**keys)(tmp_path)
    if edit is not None:
        edit(tmp_path)
    message = refusal(tmp_path, latent=True)
    assert [fragment for fragment in fragments if fragment not in message] == [], message


@pytest.mark.parametrize(("method", "name"), [("eagle-tree", "EagleMistralLarge3ForCausalLM"), ("peagle-tree", None)])
def test_those_of_other_methods_are_refused(method: str, name: str | None, tmp_path: Path) -> None:
    own = KIMI | {"ptd_token_id": 3} if name is None else {"architectures": [name]}
    write(tmp_path, LLAMA | own, eagle1() if name else kimi())
    assert "of such drafters EAGLE-3's alone are supported" in refusal(tmp_path, method, latent=True)

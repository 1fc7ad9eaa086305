"""A checkpoint of EAGLE-1, EAGLE-2 or HASS read as GRIFFIN's drafts what EAGLE drafts, at every depth of a chain."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from tests.unit.eagle_reference import (
    EPS,
    HEADS,
    MLP,
    THETA,
    VOCABULARY,
    D,
    Tensors,
    eagle_chain,
    eagle_pass,
    random_eagle,
)
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin.checkpoint import read_shape, read_tensors
from vllm_specext.methods.griffin.from_eagle import TGF_SIZE
from vllm_specext.methods.griffin.model import GriffinDrafter

PREFIX, DEPTH = 7, 6
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": D,
    "intermediate_size": MLP,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "rms_norm_eps": EPS,
    "max_position_embeddings": 64,
    "vocab_size": VOCABULARY,
    "bias": True,
}
"""As released for Llama 2: without ``rope_theta`` and ``num_key_value_heads``."""


def write(folder: Path, tensors: Tensors, is_bin: bool = False, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    if is_bin:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


def drafter(folder: Path, **changes: Tensor) -> GriffinDrafter:
    model = GriffinDrafter(read_shape(folder)).double()
    model.load_state_dict(read_tensors(folder) | changes)
    return model.eval()


@torch.inference_mode()
def griffin_chain(model: GriffinDrafter, head: Tensor, tokens: Tensor, features: Tensor) -> list[tuple[Tensor, Tensor]]:
    """As `eagle_chain`: regress features are fed back, and logits come from predict features."""
    found = []
    for _ in range(DEPTH):
        length = len(tokens)
        mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
        predict, regress, _ = model(tokens[None], features[None], torch.arange(length)[None], mask)
        logits = F.linear(predict[0, -1], head)
        torch.testing.assert_close(predict, regress, rtol=0, atol=1e-12)
        found.append((regress[0, -1], logits))
        tokens = torch.cat((tokens, logits.argmax()[None]))
        features = torch.cat((features, regress[0, -1:]))
    return found


@pytest.fixture
def prefix() -> tuple[Tensor, Tensor, Tensor]:
    """The target's head, tokens and features."""
    generator = torch.Generator().manual_seed(1)
    head, features = (torch.randn(rows, D, generator=generator, dtype=torch.float64) for rows in (VOCABULARY, PREFIX))
    return head, torch.randint(VOCABULARY, (PREFIX,), generator=generator), features


LAYOUTS = {
    "EAGLE-1 without a bias": {"fc_bias": False},
    "EAGLE-2 and HASS": {"fc_bias": True},
    "Qwen2's": {"fc_bias": True, "qkv_bias": True},
}


@pytest.mark.parametrize("is_bin", [True, False], ids=["bin", "safetensors"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_drafts_what_eagle_drafts(
    layout: str, is_bin: bool, prefix: tuple[Tensor, Tensor, Tensor], tmp_path: Path
) -> None:
    tensors = random_eagle(**LAYOUTS[layout])
    theirs = eagle_chain(tensors, *prefix, DEPTH)
    ours = griffin_chain(drafter(write(tmp_path / "eagle", tensors, is_bin)), *prefix)
    for (output, logits), (wanted, wanted_logits) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(output, wanted, rtol=0, atol=1e-11)
        torch.testing.assert_close(logits, wanted_logits, rtol=0, atol=1e-11)


@pytest.mark.parametrize("theta", [THETA, 5e5])
def test_the_comparison_notices_another_rotary_base(
    theta: float, prefix: tuple[Tensor, Tensor, Tensor], tmp_path: Path
) -> None:
    tensors = random_eagle(fc_bias=True)
    _, tokens, features = prefix
    wanted = eagle_pass(tensors, tokens, features)[-1]
    ours = griffin_chain(drafter(write(tmp_path / "eagle", tensors, rope_theta=theta)), *prefix)
    assert torch.allclose(ours[0][0], wanted, rtol=0, atol=1e-11) == (theta == THETA)


@pytest.mark.parametrize("name", ["fc.mlp.down_proj.weight", "fc.mlp.up_proj.weight"])
def test_the_comparison_notices_a_fusion_that_is_not_of_zeros(
    name: str, prefix: tuple[Tensor, Tensor, Tensor], tmp_path: Path
) -> None:
    """One of the two matrices alone changes nothing; that of both shows in every drafted token."""
    tensors = random_eagle(fc_bias=True)
    folder = write(tmp_path / "eagle", tensors)
    theirs = eagle_chain(tensors, *prefix, DEPTH)
    found = read_tensors(folder)
    alone = {name: torch.randn_like(found[name])}
    both = {key: torch.randn_like(found[key]) for key in ("fc.mlp.down_proj.weight", "fc.mlp.up_proj.weight")}
    for changes, same in ((alone, True), (both, False)):
        ours = griffin_chain(drafter(folder, **changes), *prefix)
        assert [torch.allclose(a, b, rtol=0, atol=1e-9) for (a, _), (b, _) in zip(ours, theirs, strict=True)] == [
            same
        ] * DEPTH


def test_what_is_added_is_small_and_of_the_files_type(tmp_path: Path) -> None:
    tensors = random_eagle(fc_bias=False, dtype=torch.bfloat16)
    folder = write(tmp_path / "eagle", tensors)
    found = read_tensors(folder)
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == read_shape(folder).tensor_shapes()
    assert read_shape(folder).tgf_size == TGF_SIZE
    assert torch.equal(found["layers.0.mlp.down_proj.weight"], tensors["layers.0.mlp.down_proj.weight"].repeat(2, 1))


# Damage


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_shape(folder)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", sorted(random_eagle(fc_bias=False).keys() - {"fc.weight"}))
def test_each_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    tensors = random_eagle(fc_bias=False)
    del tensors[name]
    assert f"EAGLE-1, EAGLE-2 or HASS checkpoint: it lacks tensor {name}." in refusal(
        write(tmp_path / "eagle", tensors)
    )


@pytest.mark.parametrize("name", ["fc.weight", "fc.bias", "layers.0.mlp.down_proj.weight"])
def test_a_misshapen_tensor_is_named_with_the_files_shapes(name: str, tmp_path: Path) -> None:
    tensors = random_eagle(fc_bias=True)
    rows, *rest = tensors[name].shape
    tensors[name] = torch.zeros(rows + 1, *rest)
    message = refusal(write(tmp_path / "eagle", tensors))
    assert f"tensor {name} has shape {[rows + 1, *rest]}; expected {[rows, *rest]}" in message


@pytest.mark.parametrize("name", ["lm_head.weight", "layers.0.input_layernorm.weight", "layers.1.mlp.up_proj.weight"])
def test_an_unexpected_tensor_is_named(name: str, tmp_path: Path) -> None:
    tensors = random_eagle(fc_bias=True) | {name: torch.zeros(D, D)}
    assert f"unexpected tensor {name}" in refusal(write(tmp_path / "eagle", tensors))


@pytest.mark.parametrize(
    "changes", [{"num_hidden_layers": 2}, {"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rms_norm_eps": None}]
)
def test_a_bad_configuration_value_is_named(changes: dict[str, Any], tmp_path: Path) -> None:
    message = refusal(write(tmp_path / "eagle", random_eagle(fc_bias=True), **changes))
    assert next(iter(changes)) in message


def test_one_number_that_stands_for_many_is_refused_before_it_takes_room(tmp_path: Path) -> None:
    tensors = random_eagle(fc_bias=True)
    tensors["fc.weight"] = torch.zeros(1).expand(2**24, 2**24)
    message = refusal(write(tmp_path / "eagle", tensors, is_bin=True))
    assert "tensor fc.weight has shape [16777216, 16777216], but the file does not hold so many numbers" in message


class Code:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "eagle", random_eagle(fc_bias=True), is_bin=True)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Code(tmp_path / "trap")}, protocol=2))
    assert "other than tensors" in refusal(folder)
    assert not (tmp_path / "trap").exists()

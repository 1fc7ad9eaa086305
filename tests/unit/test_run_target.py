"""The target's embedding, head and last norm, from its files: tied, apart, and what cannot be one."""

import json
import shutil
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import TARGET
from vllm_specext.training.pipeline.target import read_target
from vllm_specext.training.pipeline.target_ends import TargetEnds, plain_numbers

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


def changed(folder: Path, tensors: dict[str, torch.Tensor | None], tied: bool = True) -> Path:
    """The bundled target with these tensors, ``None`` for one that is missing."""
    shutil.copytree(TARGET, folder)
    found = load_file(TARGET / "model.safetensors") | tensors
    save_file({name: x for name, x in found.items() if x is not None}, folder / "model.safetensors")
    if not tied:
        config = folder / "config.json"
        config.write_text(config.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))
    return folder


def ends(folder: Path) -> TargetEnds:
    return TargetEnds(read_target(str(folder), weights=True))


def test_a_tied_head_is_the_embedding_and_another_is_read(tmp_path: Path) -> None:
    tied = ends(TARGET)
    assert tied.head.dtype is torch.float32
    assert torch.equal(tied.head, tied.get_input_embeddings().weight)
    own = torch.randn(2048, 256)
    apart = ends(changed(tmp_path / "apart", {HEAD: own}, tied=False))
    assert torch.equal(apart.head, own)
    assert torch.equal(apart.get_input_embeddings().weight, tied.head)
    assert not apart.get_input_embeddings().weight.requires_grad


def test_the_last_norm_is_read_where_it_has_its_usual_name(tmp_path: Path) -> None:
    norm = ends(TARGET).norm
    assert norm is not None
    assert torch.equal(norm, load_file(TARGET / "model.safetensors")[NORM].float())
    assert ends(changed(tmp_path / "without", {NORM: None})).norm is None


def test_norms_and_embeddings_are_as_the_target_takes_them(tmp_path: Path) -> None:
    """Gemma's norms multiply by one more than their weights, and its embeddings by the root of the hidden size."""
    plain, folder = ends(TARGET), changed(tmp_path / "gemma", {})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gemma3_text"}))
    gemma = ends(folder)
    assert plain.norm is not None
    assert torch.equal(cast(torch.Tensor, gemma.norm), plain.norm + 1)
    assert (plain.embedding_scale, gemma.embedding_scale) == (1, 16)


@pytest.mark.parametrize("name", ["model.layers.61.embed_tokens.weight", "mtp.embed_tokens.weight"])
def test_the_ends_of_a_module_are_not_the_targets(name: str, tmp_path: Path) -> None:
    with_module = ends(changed(tmp_path / "target", {name: torch.zeros(2048, 256)}))
    assert torch.equal(with_module.head, ends(TARGET).head)


def test_of_several_rotary_bases_that_without_a_window_is_taken(tmp_path: Path) -> None:
    folder = changed(tmp_path / "target", {})
    config = json.loads((folder / "config.json").read_text())
    rope = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    (folder / "config.json").write_text(json.dumps(config | {"rope_parameters": rope}))
    assert plain_numbers(read_target(str(folder))).rope_theta == 1e6


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({EMBEDDING: None}, "has 0 tensors that may be the target's embedding"),
        ({"other.embed_tokens.weight": torch.zeros(3, 256)}, "has 2 tensors that may be the target's embedding"),
        ({EMBEDDING: torch.zeros(2048, 9)}, r"embed_tokens.weight has shape \[2048, 9\]"),
        ({EMBEDDING: torch.zeros(2048, 256, dtype=torch.int8)}, "type torch.int8; an embedding that is not quantised"),
        ({EMBEDDING: torch.full((2048, 256), torch.nan)}, "holds numbers that are not finite"),
    ],
)
def test_what_is_no_embedding_is_refused(
    tensors: dict[str, torch.Tensor | None], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        ends(changed(tmp_path / "target", tensors))

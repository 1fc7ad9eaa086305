"""Quantised drafters become unquantised ones with the numbers that their weights stand for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from tests.unit import eagle_folders
from tests.unit.conversions import CHECKPOINTS, command, refusal
from tests.unit.tiny_dflash import tiny_dspark
from tests.unit.tiny_llama import tiny_llama
from vllm_specext.cli import app
from vllm_specext.convert.files import open_source
from vllm_specext.convert.formats import recognise
from vllm_specext.convert.kinds import METHODS, Format, To
from vllm_specext.measure.bundled import MODELS
from vllm_specext.training.block.checkpoint import write_checkpoint

SIZES = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
DRAFTERS = {"dflash": "dflash-tree", "eagle3": "eagle3-tree"}


def nvfp4(name: str, weight: Tensor) -> dict[str, Tensor]:
    """As the Model Optimizer writes it: the nearest of the numbers that there are, times scales."""
    whole = weight.abs().max() / (6 * 448)
    runs = weight.unflatten(1, (-1, 16))
    scale = (runs.abs().amax(dim=2) / 6 / whole).clamp(min=2**-6).to(torch.float8_e4m3fn)
    numbers = (runs / (scale.float() * whole)[..., None]).flatten(1)
    halves = (numbers.abs()[..., None] - torch.tensor(SIZES)).abs().argmin(dim=-1) + 8 * (numbers < 0)
    packed = (halves[:, ::2] + 16 * halves[:, 1::2]).to(torch.uint8)
    return {name: packed, f"{name}_scale": scale, f"{name}_scale_2": whole}


def float8(name: str, weight: Tensor, rows: bool) -> dict[str, Tensor]:
    largest = weight.abs().amax(dim=1, keepdim=True) if rows else weight.abs().max()
    scale = largest.clamp(min=1e-6) / 448
    return {name: (weight / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale}


def value(numbers: Tensor, scale: Tensor, whole: Tensor, row: int, column: int) -> float:
    byte = int(numbers[row, column // 2])
    four = byte >> 4 if column % 2 else byte & 15
    return (-1 if four & 8 else 1) * SIZES[four & 7] * float(scale[row, column // 16]) * float(whole)


def quantised(folder: Path, source: Path, kind: str) -> dict[str, Tensor]:
    """The drafter in ``source``, its matrices quantised but the embedding, in ``folder``; and its tensors before."""
    folder.mkdir(exist_ok=True)
    tensors = {
        name: x.float() if x.is_floating_point() else x for name, x in load_file(source / "model.safetensors").items()
    }
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or "embed" in name or not tensor.is_floating_point():
            stored[name] = tensor
        elif kind == "NVFP4":
            stored |= nvfp4(name, tensor)
        else:
            stored |= float8(name, tensor, rows=kind == "float8 by rows")
    stored["layers.0.self_attn.k_proj.input_scale"] = torch.ones(())
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    own = {"quantization_config": {"quant_method": "modelopt"}}
    (folder / "config.json").write_text(json.dumps(config | own | {"dtype": "float16", "model": own | {"kept": 1}}))
    return tensors


@pytest.mark.parametrize("kind", ["NVFP4", "float8", "float8 by rows"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_numbers_are_those_that_stand_there(drafter: str, kind: str, tmp_path: Path) -> None:
    before = quantised(tmp_path / "quantised", MODELS / drafter, kind)
    done = CliRunner().invoke(app, command(tmp_path / "quantised", tmp_path / "new", "--to", "bfloat16"))
    assert done.exit_code == 0, done.output
    assert DRAFTERS[drafter] in done.output.splitlines()[-1]
    found, stored = (load_file(tmp_path / each / "model.safetensors") for each in ("new", "quantised"))
    assert found.keys() == before.keys()
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert {"quantization_config", "dtype"}.isdisjoint(config)
    assert (config["model"], config["torch_dtype"]) == ({"kept": 1}, "bfloat16")
    changed = [name for name in before if f"{name}_scale" in stored]
    assert len(changed) >= 7
    for name, tensor in before.items():
        if name not in changed:
            assert torch.equal(found[name], tensor)
            continue
        assert found[name].dtype == torch.bfloat16
        far = (found[name].float() - tensor).abs().max() / tensor.abs().max()
        assert far < (0.2 if kind == "NVFP4" else 0.05)
        if kind == "NVFP4":
            for row, column in ((0, 0), (1, 1), (3, 17), (5, 30)):
                own = value(stored[name], stored[f"{name}_scale"], stored[f"{name}_scale_2"], row, column)
                assert found[name][row, column] == torch.tensor(own).to(torch.bfloat16)


def write(folder: Path, found: Format) -> None:
    """An unquantised drafter of the format."""
    folder.mkdir()
    if found is Format.DSPARK:
        drafter = tiny_dspark(tiny_llama(6))
        write_checkpoint(folder, drafter.shape, drafter.state_dict(), torch.float32)
    else:
        eagle_folders.write(folder, *CHECKPOINTS[found])


@pytest.mark.parametrize("found", [*CHECKPOINTS, Format.DSPARK])
def test_a_drafter_of_any_format_keeps_its_names_sizes_and_keys(found: Format, tmp_path: Path) -> None:
    """So that it is read as if it had never been quantised."""
    write(tmp_path / "before", found)
    quantised(tmp_path / "quantised", tmp_path / "before", "float8 by rows")
    done = CliRunner().invoke(app, command(tmp_path / "quantised", tmp_path / "new", "--to", "bfloat16"))
    assert done.exit_code == 0, done.output
    assert METHODS[found] in done.output.splitlines()[-1]
    before, new = (open_source(tmp_path / each) for each in ("before", "new"))
    assert {name: header.shape for name, header in new.headers.items()} == {
        name: header.shape for name, header in before.headers.items()
    }
    kept = {key: value for key, value in before.config.items() if key not in ("dtype", "torch_dtype")}
    assert new.config.items() >= kept.items()
    for each in (before, new):
        assert recognise(each.place, each.config, each.headers, blocks=True) is found


def test_an_unquantised_drafter_needs_no_conversion(tmp_path: Path) -> None:
    assert "nothing is to be converted" in refusal(MODELS / "dflash", To.BFLOAT16)


def test_whole_numbers_are_no_reason_to_serve_it_as_it_is(tmp_path: Path) -> None:
    quantised(tmp_path, MODELS / "dflash", "float8")
    save_file(
        {"hidden_norm.weight": torch.ones(4), "fc.qweight": torch.zeros(4, dtype=torch.int32)},
        tmp_path / "model.safetensors",
    )
    assert "tensor fc.qweight holds numbers of type I32" in refusal(tmp_path, To.BFLOAT16)


def test_an_embedding_of_masks_in_a_file_of_its_own_is_refused_as_the_server_does(tmp_path: Path) -> None:
    quantised(tmp_path, MODELS / "dflash", "float8")
    (tmp_path / "mask_embedding.pt").write_bytes(b"")
    assert "is an embedding of mask tokens in its own file" in refusal(tmp_path, To.BFLOAT16)


def test_a_drafter_that_drafts_at_once_is_served_by_its_own_method(tmp_path: Path) -> None:
    quantised(tmp_path / "quantised", MODELS / "eagle3", "float8")
    config = tmp_path / "quantised" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"ptd_token_id": 5}))
    done = CliRunner().invoke(app, command(tmp_path / "quantised", tmp_path / "new", "--to", "bfloat16"))
    assert "peagle-tree" in done.output.splitlines()[-1]


BYTES = torch.zeros(4, 16, dtype=torch.uint8)
EIGHT = torch.zeros(4, 2).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fc.weight": EIGHT}, "has no scale fc.weight_scale"),
        ({"fc.weight": EIGHT, "fc.weight_scale": torch.ones(2, 2)}, r"has a scale of the shape [2, 2]"),
        (
            {"fc.weight": EIGHT, "fc.weight_scale": torch.ones(()), "fc.pre_quant_scale": torch.ones(2)},
            "scales the inputs of a weight",
        ),
        ({"fc.weight": BYTES, "fc.weight_scale": EIGHT}, "has scales of the shapes [4, 2] and None"),
        ({"fc.weight": BYTES, "fc.weight_scale": EIGHT[:3]}, "has scales of the shapes [3, 2]"),
        ({"fc.weight": EIGHT, "fc.weight_scale": torch.tensor(torch.nan)}, "holds NaN"),
        ({"fc.weight": torch.zeros(4).to(torch.float8_e4m3fn), "fc.weight_scale": torch.ones(())}, "has 1 dimensions"),
        (
            {"fc.weight": EIGHT, "fc.weight_scale": torch.ones(()), "fc.pack": torch.zeros(3, dtype=torch.int32)},
            "holds numbers of type I32",
        ),
    ],
)
def test_what_is_quantised_otherwise_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    quantised(tmp_path, MODELS / "dflash", "float8")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name: x for name, x in tensors.items() if not name.startswith("fc.")}
    save_file(tensors | change, tmp_path / "model.safetensors")
    assert said in refusal(tmp_path, To.BFLOAT16)

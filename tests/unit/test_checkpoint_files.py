"""Files that would hang their reader, are cut short or hold numbers that are none are refused by name."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import MAX_CONFIG_BYTES, check_files, finite, load_tensors, read_config
from vllm_specext.methods.source import LANGUAGE_MODEL

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
BAD = [float("nan"), float("inf"), float("-inf")]


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """A call that waits ends with an error instead of never."""

    def interrupt(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for shard in (1, 2):
        save_file({f"w{shard}": torch.ones(100, 10)}, tmp_path / f"model-0000{shard}-of-00002.safetensors")
    return tmp_path


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("place", [0, 500, 1034])
def test_a_tensor_with_a_number_that_is_none_is_named(dtype: torch.dtype, value: float, place: int) -> None:
    bad = torch.randn(9, 115).to(dtype)
    bad.view(-1)[place] = value
    passed: list[str] = []
    with pytest.raises(ConfigurationError, match=r"the folder: tensor b\.weight holds NaN or an infinity"):
        passed.extend(name for name, _ in finite("the folder", {"a": torch.ones(3), "b.weight": bad}.items()))
    assert passed == ["a"]


def test_what_is_finite_or_no_plain_number_is_passed_on() -> None:
    given: dict[str, Tensor] = {
        **{str(dtype): torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype) for dtype in FLOATS},
        "one": torch.tensor(3.0),
        "none": torch.zeros(0, 4),
        "whole": torch.arange(5),
        "truths": torch.ones(4, dtype=torch.bool),
        "quantised": torch.full((4,), float("nan")).to(torch.float8_e4m3fn),
    }
    assert all(tensor is given[name] for name, tensor in finite("here", given.items()))
    assert len(list(finite("here", given.items()))) == len(given)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("value", BAD)
def test_tensors_read_for_plain_torch_are_looked_at_too(tmp_path: Path, name: str, value: float) -> None:
    tensors = {"a": torch.ones(3), "b": torch.tensor([1.0, value])}
    (torch.save if name.endswith("bin") else save_file)(tensors, tmp_path / name)
    with pytest.raises(ConfigurationError, match=f"{name}: tensor b holds NaN or an infinity"):
        load_tensors(tmp_path / name)


# --- files -----------------------------------------------------------------------------------------------------------


def test_sound_files_are_accepted_also_as_links_to_them(folder: Path, tmp_path: Path) -> None:
    check_files(folder, LANGUAGE_MODEL)
    linked = tmp_path / "links"
    linked.mkdir()
    for file in folder.glob("*.*"):
        (linked / file.name).symlink_to(file)
    check_files(linked, LANGUAGE_MODEL)
    assert read_config(linked) == {"model_type": "llama"}


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.3, 0.99])
def test_any_shard_that_is_cut_short_is_named(folder: Path, kept: float) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ConfigurationError, match=f"{path.name} is truncated or damaged"):
        check_files(folder, LANGUAGE_MODEL)


def test_a_header_larger_than_the_file_is_refused_without_room_for_it(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(ConfigurationError, match=r"model-00001-of-00002\.safetensors is truncated or damaged"):
        check_files(folder, LANGUAGE_MODEL)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer.model", "extra.safetensors"])
def test_a_named_pipe_is_refused_instead_of_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ConfigurationError, match=f"{name} is not a regular file"):
        check_files(folder, LANGUAGE_MODEL)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_configuration_that_is_no_file_is_refused(folder: Path, kind: str) -> None:
    path = folder / "config.json"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ConfigurationError, match=r"config\.json is not a regular file"):
        read_config(folder)


def test_a_configuration_of_absurd_size_is_refused_unread(folder: Path) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ConfigurationError, match=f"has {2**40} bytes; at most {MAX_CONFIG_BYTES} are allowed"):
        read_config(folder)


@pytest.mark.parametrize("tensor", [torch.zeros(1).expand(2**20, 2**20), torch.zeros(4, 4).to_sparse()])
def test_a_tensor_that_would_grow_when_it_is_copied_is_refused(tensor: Tensor, tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3), "b": tensor}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigurationError, match=r"pytorch_model\.bin: tensor b has shape .* does not hold so many"):
        load_tensors(tmp_path / "pytorch_model.bin")

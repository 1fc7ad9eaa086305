"""Shards of features give back what was written, whole or not at all, and refuse what is damaged in one sentence."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.fingerprint import fingerprint
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.shard_rows import ShardRows, find_shards
from vllm_specext.training.shards import FORMAT, pack, read_shard, write_shard

WIDTH = 4
LENGTHS = (3, 1, 5)


def made(length: int, seed: int, aux: bool = False, dtype: torch.dtype = torch.bfloat16) -> FeatureRow:
    numbers = torch.Generator().manual_seed(seed)

    def states(width: int) -> torch.Tensor:
        return torch.randn(length, width, generator=numbers).to(dtype)

    ids = torch.randint(0, 2**31 - 1, (length,), generator=numbers, dtype=torch.int64)
    mask = torch.randint(0, 2, (length,), generator=numbers)
    return FeatureRow(ids, mask, states(WIDTH), states(3 * WIDTH) if aux else None)


def write(path: Path, rows: list[FeatureRow], target: str = "ours", first_key: int = 0) -> None:
    write_shard(path, pack(rows), [f"row-{first_key + number}" for number in range(len(rows))], target, "text")


def shard_in(folder: Path, **changes: Any) -> Path:
    path = folder / "00000.safetensors"
    write(path, [made(length, length) for length in LENGTHS], **changes)
    return path


def one_sentence(error: pytest.ExceptionInfo[ConfigurationError], *words: str) -> None:
    sentence = str(error.value)
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize("aux", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_come_back_as_they_were_written(tmp_path: Path, aux: bool, dtype: torch.dtype) -> None:
    rows = [made(length, length, aux, dtype) for length in LENGTHS]
    write(tmp_path / "00000.safetensors", rows[:2])
    write(tmp_path / "00001.safetensors", rows[2:], first_key=2)
    shards = find_shards(tmp_path, "ours")
    assert [(shard.keys, shard.tokens, shard.source) for shard in shards] == [
        (("row-0", "row-1"), 4, "text"),
        (("row-2",), 5, "text"),
    ]
    source = ShardRows(shards, seed=0)
    assert source.lengths == list(LENGTHS)
    for found, expected in zip(source.read([2, 0, 1]), (rows[2], rows[0], rows[1]), strict=True):
        assert torch.equal(found.token_ids.long(), expected.token_ids)
        assert torch.equal(found.loss_mask.long(), expected.loss_mask)
        assert torch.equal(found.features, expected.features)
        assert found.features.dtype == dtype
        assert (found.aux is None) == (expected.aux is None)
        assert found.aux is None or expected.aux is None or torch.equal(found.aux, expected.aux)


def test_nothing_else_is_left_beside_a_shard_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard_in(tmp_path)
    before = path.read_bytes()

    def fail(*args: Any, **kwargs: Any) -> None:
        Path(args[1]).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vllm_specext.training.shards.save_file", fail)
    with pytest.raises(OSError, match="No space"):
        write(path, [made(7, 7)])
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_what_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = shard_in(tmp_path).read_bytes()
    path = tmp_path / "cut.safetensors"
    for size in {0, 1, 8, len(whole) - 1, *random.Random(0).sample(range(len(whole)), 60)}:
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigurationError) as error:
            read_shard(path)
        one_sentence(error, str(path), "not whole")
    path.write_bytes(whole)
    assert len(read_shard(path)) == len(LENGTHS)


def test_damage_anywhere_never_ends_otherwise_than_with_a_sentence(tmp_path: Path) -> None:
    whole, path = shard_in(tmp_path).read_bytes(), tmp_path / "damaged.safetensors"
    chooser = random.Random(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[chooser.randrange(len(whole))] = chooser.randrange(256)
        path.write_bytes(damaged)
        with suppress(ConfigurationError):
            ShardRows([read_shard(path, "ours")], seed=0).read(range(len(LENGTHS)))
            refused -= 1
        refused += 1
    assert 50 < refused < 250


def test_features_of_another_target_are_refused(tmp_path: Path) -> None:
    shard_in(tmp_path, target="theirs")
    with pytest.raises(ConfigurationError) as error:
        find_shards(tmp_path, "ours")
    one_sentence(error, "00000.safetensors", "'theirs'", "'ours'")


@pytest.mark.parametrize("name", ["features", "aux"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_neither_written_nor_read(tmp_path: Path, name: str, value: float) -> None:
    good = made(3, 0, aux=True)
    damaged = good._replace(**{name: getattr(good, name).clone()})
    getattr(damaged, name)[1, 2] = value
    path = tmp_path / "00000.safetensors"
    with pytest.raises(ConfigurationError) as error:
        write(path, [damaged])
    one_sentence(error, name, "not finite")
    assert not path.exists()
    write(path, [good, good])
    tensors = load_file(path)
    tensors[name][4, 1] = value
    save_file(tensors, path, metadata(path))
    source = ShardRows(find_shards(tmp_path), seed=0)
    source.read([0])
    with pytest.raises(ConfigurationError) as error:
        source.read([1])
    one_sentence(error, "row 1 of", name, "not finite")


def metadata(path: Path) -> dict[str, str]:
    shard = read_shard(path)
    keys = "[" + ", ".join(f'"{key}"' for key in shard.keys) + "]"
    return {"format": FORMAT, "target": shard.target, "source": shard.source, "keys": keys}


BAD: dict[str, tuple[dict[str, Any], dict[str, str], list[str]]] = {
    "format": ({}, {"format": "theirs"}, ["'theirs'", FORMAT]),
    "no keys": ({}, {"keys": "{"}, ["names", "3 rows"]),
    "few keys": ({}, {"keys": '["a"]'}, ["names", "3 rows"]),
    "no mask": ({"loss_mask": None}, {}, ["features, row_starts, token_ids", "expected"]),
    "another": ({"extra": torch.zeros(1)}, {}, ["extra"]),
    "type": ({"token_ids": torch.zeros(9, dtype=torch.int64)}, {}, ["token_ids", "I64", "I32"]),
    "dimensions": ({"features": torch.zeros(9)}, {}, ["features", "[9]", "2 dimensions"]),
    "empty": ({"row_starts": torch.zeros(0, dtype=torch.int64)}, {}, ["row_starts", "[0]"]),
    "mask": ({"loss_mask": torch.zeros(8, dtype=torch.uint8)}, {}, ["loss_mask", "[8]", "[9, 4]"]),
    "aux": ({"aux": torch.zeros(9, 2 * WIDTH + 1)}, {}, ["aux", "[9, 9]", "[9, 4]"]),
    "short aux": ({"aux": torch.zeros(8, WIDTH)}, {}, ["aux", "[8, 4]", "[9, 4]"]),
    "many rows": ({"row_starts": torch.arange(12)}, {}, ["row_starts", "[12]"]),
    "falling": ({"row_starts": torch.tensor([0, 4, 3, 9])}, {}, ["row_starts", "rise"]),
    "end": ({"row_starts": torch.tensor([0, 3, 4, 8])}, {}, ["row_starts", "9"]),
    "start": ({"row_starts": torch.tensor([1, 3, 4, 9])}, {}, ["row_starts", "9"]),
}


@pytest.mark.parametrize("damage", BAD)
def test_a_file_that_is_no_shard_says_why(tmp_path: Path, damage: str) -> None:
    tensors, header, words = BAD[damage]
    path = shard_in(tmp_path)
    changed = {name: tensor for name, tensor in (load_file(path) | tensors).items() if tensor is not None}
    save_file(changed, path, metadata(path) | header)
    with pytest.raises(ConfigurationError) as error:
        read_shard(path)
    one_sentence(error, str(path), *words)


def test_shards_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    shard_in(tmp_path)
    write(tmp_path / "00001.safetensors", [made(3, 0, aux=True)])
    with pytest.raises(ConfigurationError) as error:
        find_shards(tmp_path)
    one_sentence(error, "00001.safetensors", "aux_width 12", "0")
    with pytest.raises(ConfigurationError) as error:
        find_shards(tmp_path / "nowhere")
    one_sentence(error, "no shards")


def test_a_target_is_told_from_another_by_its_configuration_and_its_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        fingerprint(tmp_path)
    one_sentence(error, "config.json")
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    found = set()
    for content in (b"a" * 2**22, b"b" + b"a" * (2**22 - 1), b"a" * (2**22 - 1) + b"b", b"a" * (2**22 + 1)):
        weights.write_bytes(content)
        found.add(fingerprint(tmp_path))
        assert fingerprint(tmp_path) in found
    (tmp_path / "config.json").write_text("{ }")
    found.add(fingerprint(tmp_path))
    assert len(found) == 5

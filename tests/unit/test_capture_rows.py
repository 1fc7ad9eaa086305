"""What is kept of the target's steps is found by request and position, computed last, whatever was computed twice,
forgotten or found no room."""

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from vllm_specext.methods.capture.kept_rows import KeptRows, StepRows
from vllm_specext.methods.capture.worker import FeatureWriter, checksum, pack_kept
from vllm_specext.training.shards import read_shard

CPU = torch.device("cpu")


def kept_rows(capacity: int) -> KeptRows:
    return KeptRows(capacity, 2, 6, torch.float32, CPU)


class Steps:
    """Steps of made-up requests, into ``kept`` and into a dictionary of all positions' newest values."""

    def __init__(self, kept: KeptRows) -> None:
        self.kept = kept
        self.newest: dict[str, dict[int, float]] = {}
        self.count = 0

    def add(self, **requests: tuple[int, int]) -> None:
        """Positions from the first number to the second, of each request."""
        starts, positions, values = [0], [], []
        for name, (first, stop) in requests.items():
            for position in range(first, stop):
                self.count += 1
                positions.append(position)
                values.append(float(self.count))
                self.newest.setdefault(name, {})[position] = float(self.count)
            starts.append(len(positions))
        value = torch.tensor(values)[:, None]
        rows = StepRows(
            torch.tensor(positions).int() + 100, torch.tensor(positions), value + torch.zeros(2), value * torch.ones(6)
        )
        self.kept.add(list(requests), starts, rows)

    def found(self, name: str, length: int) -> list[float] | None:
        places = self.kept.places(name, length)
        if places is None:
            return None
        features, aux = self.kept.rows.features[places], self.kept.rows.aux
        assert aux is not None
        assert torch.equal(aux[places], features[:, :1].expand(-1, 6))
        assert self.kept.rows.token_ids[places].tolist() == list(range(100, 100 + length))
        return features[:, 0].tolist()

    def expected(self, name: str, length: int) -> list[float]:
        return [self.newest[name][position] for position in range(length)]


def test_prompts_in_pieces_and_answers_are_found_in_order() -> None:
    steps = Steps(kept_rows(64))
    steps.add(a=(0, 3), b=(0, 2))
    steps.add(b=(2, 3), a=(3, 6))
    steps.add(a=(6, 7))
    assert steps.found("a", 7) == [1, 2, 3, 7, 8, 9, 10]
    assert steps.found("b", 3) == [4, 5, 6]
    assert steps.found("a", 8) is None
    assert steps.found("c", 1) is None


def test_what_is_computed_again_counts_as_it_was_computed_last() -> None:
    steps = Steps(kept_rows(64))
    steps.add(a=(0, 4))
    steps.add(a=(0, 2))
    assert steps.found("a", 4) == [5, 6, 3, 4]


def test_a_gap_is_no_row() -> None:
    steps = Steps(kept_rows(64))
    steps.add(a=(0, 2))
    steps.add(a=(3, 5))
    assert steps.found("a", 2) == [1, 2]
    assert steps.found("a", 5) is None


def test_rows_that_are_not_wanted_make_room() -> None:
    steps = Steps(kept_rows(10))
    steps.add(a=(0, 3), b=(0, 3))
    steps.add(b=(0, 3))
    steps.kept.forget(["a"])
    steps.add(b=(3, 5), c=(0, 4))
    assert steps.kept.used == 9
    assert steps.found("b", 5) == [7, 8, 9, 10, 11]
    assert steps.found("c", 4) == [12, 13, 14, 15]
    assert steps.found("a", 1) is None


def test_without_room_the_requests_with_the_fewest_rows_are_given_up() -> None:
    steps = Steps(kept_rows(10))
    steps.add(a=(0, 6), b=(0, 3))
    steps.add(a=(6, 8), b=(3, 4))
    assert steps.found("a", 8) == [*range(1, 7), 10, 11]
    assert steps.found("b", 3) is None
    steps.add(a=(8, 9), b=(4, 5))
    assert steps.found("a", 9) == [*range(1, 7), 10, 11, 13]
    assert steps.found("b", 5) is None
    steps.kept.clear()
    steps.add(b=(0, 2))
    assert steps.found("b", 2) == [15, 16]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_events_leaves_the_newest_rows_or_none(seed: int) -> None:
    chooser = random.Random(seed)
    steps = Steps(kept_rows(chooser.choice([20, 60, 400])))
    lengths = dict.fromkeys("abcdef", 0)
    returned = 0
    for _ in range(60):
        step = {}
        for name in chooser.sample(sorted(lengths), chooser.randint(1, 4)):
            if chooser.random() < 0.1:
                lengths[name] = 0  # a preemption
            grown = lengths[name] + chooser.choice([1, 1, 1, 5])
            step[name] = (lengths[name], grown)
            lengths[name] = grown
        steps.add(**step)
        assert steps.kept.used <= steps.kept.capacity
        if chooser.random() < 0.1:
            gone = chooser.choice(sorted(lengths))
            steps.kept.forget([gone])
            lengths[gone] = 0
        for name, length in lengths.items():
            found = steps.found(name, length) if length else None
            assert found is None or found == steps.expected(name, length)
            returned += found is not None
            if steps.kept.capacity == 400 and length and name not in steps.kept._incomplete:
                assert found is not None
    assert returned > 10


def test_rows_of_other_tokens_and_missing_ones_are_named_and_the_rest_is_packed() -> None:
    steps = Steps(kept_rows(64))
    steps.add(**{"7-0a1b2c3d": (0, 4), "8-ffffffff": (0, 3), "own": (0, 2)})

    def tokens(length: int) -> Tensor:
        return torch.arange(100, 100 + length)

    def bits(*mask: int) -> bytes:
        return np.packbits(mask).tobytes()

    wanted = [
        ("a", "7", 4, checksum(tokens(4)), (), bits(0, 1, 1, 0)),
        ("b", "8", 3, checksum(tokens(3) + 1), (), b""),
        ("c", "own", 2, checksum(tokens(2)), (), bits(1, 1)),
        ("d", "9", 1, checksum(tokens(1)), (), b""),
        ("e", "7", 0, checksum(tokens(0)), (), b""),
    ]
    packed, missing = pack_kept(steps.kept, wanted)
    assert missing == [1, 3, 4]
    assert packed is not None
    assert packed.row_starts.tolist() == [0, 4, 6]
    assert packed.token_ids.tolist() == [100, 101, 102, 103, 100, 101]
    assert packed.loss_mask.tolist() == [0, 1, 1, 0, 1, 1]
    assert packed.features[:, 0].tolist() == [1, 2, 3, 4, 8, 9]


def test_a_token_that_was_sampled_and_never_read_is_in_its_row_with_zeros() -> None:
    steps = Steps(kept_rows(64))
    steps.add(a=(0, 2), b=(0, 3))
    ids = torch.arange(100, 103)
    wanted = [
        ("a", "a", 2, checksum(ids[:2]), (7,), np.packbits([0, 1, 1]).tobytes()),
        ("b", "b", 3, checksum(ids), (), np.packbits([0, 0, 1]).tobytes()),
    ]
    packed, missing = pack_kept(steps.kept, wanted)
    assert missing == []
    assert packed is not None
    assert packed.row_starts.tolist() == [0, 3, 6]
    assert packed.token_ids.tolist() == [100, 101, 7, 100, 101, 102]
    assert packed.loss_mask.tolist() == [0, 1, 1, 0, 0, 1]
    assert packed.features.tolist() == [[value] * 2 for value in (1, 2, 0, 3, 4, 5)]
    assert packed.aux is not None
    assert packed.aux.tolist() == [[value] * 6 for value in (1, 2, 0, 3, 4, 5)]
    # What is kept stays as it was.
    assert steps.found("a", 2) == [1, 2]


def test_ranks_that_keep_nothing_answer_nothing() -> None:
    writer = FeatureWriter()
    writer.model_runner = SimpleNamespace(speculator=SimpleNamespace(kept=None))
    assert writer.write_features("nowhere", [], "target", "text") is None
    writer.forget_features(None)


def test_rows_with_numbers_that_are_not_finite_are_missing_and_a_full_disk_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(kept_rows(64))
    wanted = [(key, key, 2, checksum(torch.tensor([100, 101])), (), b"") for key in "ab"]
    path = tmp_path / "00000.safetensors"
    writer = FeatureWriter()
    writer.model_runner = SimpleNamespace(speculator=SimpleNamespace(kept=steps.kept))
    steps.add(a=(0, 2), b=(0, 2))
    steps.kept.rows.features[1, 0] = float("nan")
    assert writer.write_features(str(path), wanted, "target", "text") == [0]
    assert read_shard(path, "target").keys == ("b",)
    assert steps.found("b", 2) is not None  # until it is forgotten
    steps.kept.clear()
    assert steps.kept.used == 0
    steps.add(a=(0, 2), b=(0, 2))

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vllm_specext.training.shards.save_file", full)
    found = writer.write_features(str(path), wanted, "target", "text")
    assert found == f"{path} cannot be written (No space left on device)."

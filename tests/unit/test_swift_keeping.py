"""What the search finds reaches the log and a file, and neither gets in the engine's way."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.swift_searches import LAYERS, START, chain, run, search, step
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.swift.prepare import prepare
from vllm_specext.methods.swift.search.acceptance import AVERAGED_VERIFICATIONS
from vllm_specext.methods.swift.search.keeping import INTERVAL, SetRecorder, logger, settled
from vllm_specext.methods.swift.search.search import INCUMBENT_INTERVAL, SCORINGS, TOLERANCE, Search, SearchOptions
from vllm_specext.methods.swift.search.stored import Target, read_found
from vllm_specext.options.swift import SwiftOptions
from vllm_specext.refusals import Launch

TARGET = Target("org/model", "LlamaForCausalLM", LAYERS, 512, 4096)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.LogCaptureFixture]:
    monkeypatch.setattr(logger, "propagate", False)  # vLLM's logger may have a handler and a level of its own
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in log.records]
    log.clear()
    return found


def recorder(searching: Search, path: Path | None = None, **options: Any) -> SetRecorder:
    return SetRecorder(searching, SearchOptions(**options), TARGET, path)


def find_better(searching: Search, score: float) -> None:
    """The next proposed set is adopted, or the active set scored for the first time."""
    step(searching, score, searching.best)


def be_sure_of(searching: Search, score: float) -> None:
    """The next proposed set is adopted, or the active set scored for the first time, and then scored some more."""
    find_better(searching, score)
    try_in_vain(searching, (SCORINGS - 1) * (INCUMBENT_INTERVAL + 1))


def try_in_vain(searching: Search, steps: int) -> None:
    for _ in range(steps):
        step(searching, 0.0, searching.best)


def test_a_new_set_is_logged_and_written_at_once(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    searching = search()
    keeping = recorder(searching, tmp_path / "set.json")
    find_better(searching, 0.3)
    keeping.record()
    assert lines(log) == []
    assert list(tmp_path.iterdir()) == []
    find_better(searching, 0.5)
    keeping.record()
    assert lines(log) == [f"SWIFT skips {searching.active}: set 1, matchness 0.50, after 1 candidate."]
    assert [path.name for path in tmp_path.iterdir()] == ["set.json"]
    found = read_found(tmp_path / "set.json")
    assert (found.target, found.skipped, found.skip_ratio) == (TARGET, searching.active, 0.45)
    assert (found.matchness, found.steps, found.history) == (0.5, 1, tuple(searching.history))


def test_sets_that_follow_soon_are_logged_together(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    searching = search()
    keeping = recorder(searching, tmp_path / "set.json")
    logged = []
    for number in range(INTERVAL + 3):
        find_better(searching, 0.1 + number / 100)
        keeping.record()
        keeping.record()
        logged += [settled(searching)] * len(lines(log))
    assert logged == [2, 2 + INTERVAL]
    assert read_found(tmp_path / "set.json").steps == 1 + INTERVAL < searching.steps


def test_a_set_that_was_not_logged_is_logged_when_the_interval_is_over(log: pytest.LogCaptureFixture) -> None:
    searching = search()
    keeping = recorder(searching)
    for score in (0.1, 0.2, 0.3):
        find_better(searching, score)
        keeping.record()
    assert len(lines(log)) == 1
    for _ in range(INTERVAL):
        try_in_vain(searching, 1)
        keeping.record()
    assert [line.partition(": ")[2] for line in lines(log)] == [
        f"set 2, matchness 0.30, after {INTERVAL + 1} candidates."
    ]


@pytest.mark.parametrize(
    ("options", "end", "why"),
    [
        ({}, lambda searching: be_sure_of(searching, 0.97), "matchness is above swift_max_score, 0.95"),
        ({"swift_max_steps": 5}, lambda searching: try_in_vain(searching, 5), "swift_max_steps is reached"),
        (
            {},
            lambda searching: try_in_vain(searching, TOLERANCE + 1),
            "more than 300 candidates in a row were no better",
        ),
    ],
)
def test_the_end_of_the_search_is_logged_once_with_its_reason_and_written(
    tmp_path: Path, log: pytest.LogCaptureFixture, options: dict[str, Any], end: Any, why: str
) -> None:
    searching = search(**options)
    keeping = recorder(searching, tmp_path / "set.json", **options)
    find_better(searching, 0.5)
    end(searching)
    for _ in range(3):
        keeping.record()
    (line,) = lines(log)
    assert line.endswith(f". The search stops: {why}.")
    found = read_found(tmp_path / "set.json")
    assert (found.skipped, found.steps) == (searching.active, searching.steps)


def test_a_new_start_is_logged_and_so_is_the_next_end(log: pytest.LogCaptureFixture) -> None:
    searching = search()
    keeping = recorder(searching)
    be_sure_of(searching, 0.97)
    keeping.record()
    assert "The search stops" in lines(log)[0]
    for accepted in [9] * AVERAGED_VERIFICATIONS + [1] * AVERAGED_VERIFICATIONS:
        searching.note(chain(accepted, 10))
    assert searching.restarts == 1
    keeping.record()
    assert [line.partition(",")[0] for line in lines(log)] == ["SWIFT's search starts anew"]
    be_sure_of(searching, 0.98)
    keeping.record()
    assert "The search stops" in lines(log)[0]


def test_nothing_is_logged_or_written_where_nothing_is_searched_for(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    searching = search(swift_max_steps=0)
    keeping = recorder(searching, tmp_path / "set.json", swift_max_steps=0)
    keeping.record()
    keeping.save()
    assert lines(log) == []
    assert list(tmp_path.iterdir()) == []


def test_at_the_end_what_was_tried_since_is_written_once_more(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    searching = search()
    keeping = recorder(searching, path)
    run(searching, lambda skipped: 0.4, steps=7)
    keeping.record()
    assert not path.exists()
    keeping.save()
    found = read_found(path)
    assert (found.skipped, found.steps, len(found.history)) == (START, 6, 7)
    path.unlink()
    keeping.save()
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_one_warning_and_written_when_it_can_be(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "gone" / "set.json"
    searching = search(swift_max_steps=3)
    keeping = recorder(searching, path, swift_max_steps=3)
    for score in (0.1, 0.2):
        find_better(searching, score)
        keeping.record()
    try_in_vain(searching, 1)
    keeping.save()
    warnings = [record.getMessage() for record in log.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    path.parent.mkdir()
    try_in_vain(searching, 1)
    keeping.record()
    assert read_found(path).steps == 3


def launch() -> Any:
    model = SimpleNamespace(
        model="org/model",
        architectures=["LlamaForCausalLM"],
        hf_text_config=SimpleNamespace(num_hidden_layers=LAYERS),
        get_hidden_size=lambda: 512,
        get_vocab_size=lambda: 4096,
    )
    return Launch(SimpleNamespace(), model, SimpleNamespace(), kv_cache_dtype="auto", drafts_trees=True)


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        prepare(SwiftOptions(**keys), launch())
    message = str(refused.value)
    assert message.startswith(f"speculative-config key 'swift_save' is {keys['swift_save']!r}, but ")
    assert message.endswith(".")
    assert "\n" not in message
    return message


def test_a_file_in_a_folder_that_can_be_written_to_is_accepted_and_left_alone(tmp_path: Path) -> None:
    prepare(SwiftOptions(swift_save=str(tmp_path / "set.json")), launch())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_and_a_file_in_no_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "missing" / "set.json", tmp_path / "file" / "set.json"):
        assert "a folder that exists and can be written to" in refusal(swift_save=str(path))


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as for anyone but root
    assert "a folder that exists and can be written to" in refusal(swift_save=str(tmp_path / "set.json"))


def test_a_place_to_write_is_refused_where_nothing_is_searched_for(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    assert "'swift_max_steps' is 0" in refusal(swift_save=str(path), swift_max_steps=0)
    searching = search()
    keeping = recorder(searching, path)
    find_better(searching, 0.5)
    keeping.save()
    assert "'swift_layers'" in refusal(swift_save=str(path), swift_layers=str(path))
    prepare(SwiftOptions(swift_layers=str(path)), launch())

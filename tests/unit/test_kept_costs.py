"""What steps cost is kept for the next start, and a file that cannot be trusted counts as none."""

import json
from pathlib import Path

import pytest
from vllm.config import VllmConfig

from tests.unit.test_measured_drafts import SWIFT, clock, decode
from tests.unit.test_scheduling import configuration, scheduler
from vllm_specext.engine.scheduler.kept_costs import MOST_BYTES, KeptCosts, path_for
from vllm_specext.tree.draft_size import NOTHING, DraftSize

__all__ = ["clock"]
KEEPS = SWIFT | {"keep_step_costs": True}
COSTS = {1: {NOTHING: (0.0, 0.0), DraftSize(59, 4): (0.5, 0.004)}, 3: {NOTHING: (0.1, 0.02)}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vllm-specext" / "step-costs"


@pytest.fixture(scope="module")
def keeping() -> VllmConfig:
    return configuration(KEEPS)


def test_what_is_kept_is_read_by_the_next_start_of_the_same(
    folder: Path, keeping: VllmConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    KeptCosts(keeping).write(COSTS)
    assert KeptCosts(configuration(KEEPS)).read() == COSTS
    for other in ({"num_speculative_tokens": 4}, {"swift_max_steps": 3}):
        assert KeptCosts(configuration(KEEPS | other)).read() == {}
    monkeypatch.setenv("VLLM_SPECEXT_NATIVE", "0")  # which makes passes slower
    assert KeptCosts(keeping).read() == {}
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o077 == 0


def test_nothing_is_kept_where_the_user_wants_that_or_there_is_no_place(
    folder: Path, keeping: VllmConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert path_for(configuration(SWIFT)) is None
    folder.parent.mkdir(parents=True)
    folder.parent.chmod(0o777)
    assert path_for(keeping) is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    kept = KeptCosts(keeping)
    kept.write(COSTS)
    assert kept.read() == {}


def test_a_full_disk_is_left_without_a_part_of_a_file(
    folder: Path, keeping: VllmConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(value: object, file: object) -> None:
        raise OSError(28, "No space left on device")

    kept = KeptCosts(keeping)
    kept.write(COSTS)
    monkeypatch.setattr("vllm_specext.engine.scheduler.kept_costs.json.dump", fill)
    kept.write({})
    assert len(list(folder.iterdir())) == 1
    assert KeptCosts(keeping).read() == COSTS


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"loads": {"1": [[0, 0, 0.0, 0.0]',
        '{"loads": {"1": [[0, 0, NaN, 0.0]]}}',
        '{"loads": {"1": [[0, 0, 0.0, -1.0]]}}',
        '{"loads": {"1": [[0, 0, Infinity, 0.0]]}}',
        '{"loads": {"1": [[0, 0, 99.0, 0.0]]}}',
        '{"loads": {"1": {"0": [0.0, 0.0]}}}',
        '{"loads": {"1": [[0, 0, 0.0]]}}',
        '{"loads": {"many": [[0, 0, 0.0, 0.0]]}}',
        '{"loads": {}, "more": 1}',
        "[]",
        json.dumps({"loads": {str(load): [[0, 0, 0.0, 0.0]] for load in range(MOST_BYTES // 8)}}),
    ],
)
def test_a_file_that_says_nonsense_counts_as_none(folder: Path, keeping: VllmConfig, content: str) -> None:
    kept = KeptCosts(keeping)
    assert kept.path is not None
    kept.path.write_text(content)
    assert kept.read() == {}


@pytest.mark.parametrize("change", ["writable by others", "link"])
def test_a_file_that_others_may_have_written_counts_as_none(folder: Path, keeping: VllmConfig, change: str) -> None:
    kept = KeptCosts(keeping)
    kept.write(COSTS)
    assert kept.path is not None
    assert kept.read() == COSTS
    if change == "link":
        elsewhere = folder / "elsewhere"
        kept.path.rename(elsewhere)
        kept.path.symlink_to(elsewhere)
    else:
        kept.path.chmod(0o666)
    assert kept.read() == {}


def test_a_restart_goes_on_from_what_was_measured(folder: Path, clock: list[float]) -> None:
    """Three tokens of a draft are right. The second start is not told so, but what it takes to find out."""
    speed, first = {}, {}
    for speculative in (KEEPS, SWIFT):
        config = configuration(speculative)
        engine = scheduler(config)
        decode(engine, clock, 800, level=0.1, right=3)
        engine.shutdown()
        assert folder.is_dir()
        begun = clock[0]
        verified = decode(scheduler(config), clock, 60, level=0.1, right=3)
        keeps = config.speculative_config.options.keep_step_costs
        speed[keeps] = sum(1 + min(size, 3) for size in verified) / (clock[0] - begun)
        first[keeps] = next(size for size in verified if size)
    assert first == {True: 3, False: 1}
    assert speed[True] > 1.1 * speed[False]


def test_what_is_known_is_kept_while_serving(folder: Path, keeping: VllmConfig, clock: list[float]) -> None:
    engine = scheduler(keeping)
    decode(engine, clock, 50, level=0.1, right=3)
    assert KeptCosts(keeping).read() == {}
    decode(engine, clock, 200, level=0.1, right=3)
    assert {size.nodes for size in KeptCosts(keeping).read()[1]} >= {0, 1, 3}

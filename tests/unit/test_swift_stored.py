"""Files of found sets, and their picture."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.swift.search.search import Kind, Step
from vllm_specext.methods.swift.search.skip_set import SkipSet
from vllm_specext.methods.swift.search.stored import FoundSet, Target, check_target, read_found, write_found

TARGET = Target("org/model", "LlamaForCausalLM", 12, 512, 4096)
HISTORY = (
    Step(0, Kind.START, 0.4, 0.4, False),
    Step(1, Kind.RANDOM, 0.6, 0.6, True),
    Step(2, Kind.SUGGESTED, 0.5, 0.6, False),
)
FOUND = FoundSet(TARGET, SkipSet(12, (1, 4, 10), (2, 3)), 0.25, 0.6, 2, HISTORY)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_found(tmp_path / "set.json", FOUND)
    return tmp_path / "set.json"


def test_what_was_written_is_read(path: Path) -> None:
    assert read_found(path) == FOUND
    check_target(path, FOUND, TARGET)


def test_a_set_that_was_never_measured_and_has_no_history_can_be_written(tmp_path: Path) -> None:
    found = FoundSet(TARGET, SkipSet(12, (), (2,)), 0.25, None, 0)
    write_found(tmp_path / "set.json", found)
    assert read_found(tmp_path / "set.json") == found


def test_writing_the_same_set_twice_gives_the_same_file(path: Path, tmp_path: Path) -> None:
    write_found(tmp_path / "again.json", FOUND)
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_the_file_is_replaced_at_once_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, text: str, **options: Any) -> None:
        assert self != path
        self.write_bytes(text[:10].encode())
        raise OSError("no space left on device")

    before = path.read_bytes()
    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="no space"):
        write_found(path, FOUND)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architecture", "Qwen2ForCausalLM"),
        ("layers", 40),
        ("hidden_size", 1024),
        ("vocab_size", 32000),
    ],
)
def test_a_set_for_another_model_is_refused_with_what_differs(path: Path, key: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"set\.json is a set for org/model, whose {key} is .* {value!r}\.$"):
        check_target(path, FOUND, Target(**{**vars(TARGET), key: value}))


def test_a_renamed_model_is_the_same_model(path: Path) -> None:
    check_target(path, FOUND, Target(**{**vars(TARGET), "model": "/models/other"}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", 3),
        ("architecture", None),
        ("layers", 2),
        ("layers", True),
        ("layers", 10**9),
        ("hidden_size", 0),
        ("vocab_size", "4096"),
        ("skip_ratio", 1.5),
        ("skip_ratio", float("nan")),
        ("matchness", -0.1),
        ("matchness", True),
        ("steps", -1),
        ("steps", 1.0),
        ("skipped_attention", [0, 1]),
        ("skipped_attention", [1, 11]),
        ("skipped_attention", [4, 1]),
        ("skipped_mlp", [2, 2]),
        ("skipped_mlp", [2.0]),
        ("skipped_mlp", [True]),
        ("skipped_mlp", "23"),
        ("skipped_mlp", None),
        ("skipped_mlp", list(range(1000))),
        ("history", {}),
        ("history", [[0, "start", 0.4, 0.4]]),
        ("history", [[0, "lucky", 0.4, 0.4, False]]),
        ("history", [[0, ["start"], 0.4, 0.4, False]]),
        ("history", [[0, "start", 4, 0.4, False]]),
        ("history", ["start"]),
    ],
)
def test_a_bad_value_is_refused_by_file_and_key(path: Path, key: str, value: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, key: value}))
    with pytest.raises(ConfigurationError, match=rf"set\.json: {key} is .*; expected ") as error:
        read_found(path)
    assert len(str(error.value)) < 300 + len(str(path))


@pytest.mark.parametrize("key", ["model", "layers", "skipped_attention", "skipped_mlp", "skip_ratio", "steps"])
def test_a_missing_key_is_refused_by_name(path: Path, key: str) -> None:
    content = json.loads(path.read_text())
    del content[key]
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=rf"{key} is None"):
        read_found(path)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", "[" * 100_000, "\x00\xff"])
def test_what_is_no_set_is_refused_in_one_sentence(path: Path, text: str) -> None:
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"set\.json (is not a JSON file|does not hold a JSON object)\.$"):
        read_found(path)


def test_a_file_that_is_not_there_is_refused_with_the_key_that_named_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'swift_layers' is .*, which is no file"):
        read_found(tmp_path / "missing.json")


def test_a_folder_is_no_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a JSON file"):
        read_found(tmp_path)


def with_axes(draw: Callable[[Any], None]) -> Any:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    draw(axes)
    return axes


def test_the_picture_shows_every_sub_layer_as_kept_skipped_or_never_skipped() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.colors import same_color

    from vllm_specext.methods.swift.search.picture import NEVER_SKIPPED, SKIPPED, draw_set

    axes = with_axes(lambda axes: draw_set(axes, FOUND.skipped))
    cells = {
        (round(bar.get_y() + bar.get_height() / 2), round(bar.get_x() + bar.get_width() / 2)): bar.get_facecolor()
        for bar in axes.patches
    }
    assert len(cells) == 2 * 12
    assert {cell for cell, color in cells.items() if same_color(color, SKIPPED)} == {
        *((1, layer) for layer in (1, 4, 10)),
        *((0, layer) for layer in (2, 3)),
    }
    never = {cell for cell, color in cells.items() if same_color(color, NEVER_SKIPPED)}
    assert never == {(0, 0), (1, 0), (0, 11), (1, 11)}


def test_the_picture_shows_all_scores_and_the_active_sets() -> None:
    pytest.importorskip("matplotlib")
    from vllm_specext.methods.swift.search.picture import draw_history

    axes = with_axes(lambda axes: draw_history(axes, HISTORY))
    lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}
    assert lines["candidate: random"] == ([1], [0.6])
    assert lines["candidate: suggested"] == ([2], [0.5])
    assert lines["active set"] == ([0, 1, 2], [0.4, 0.6, 0.6])


def test_the_picture_is_written_even_without_a_history(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from vllm_specext.methods.swift.search.picture import save_picture

    save_picture(tmp_path / "search.png", FOUND.skipped, ())
    assert (tmp_path / "search.png").read_bytes().startswith(b"\x89PNG")

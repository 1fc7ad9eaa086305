"""The documents' figures follow from the result files that stand beside them."""

from pathlib import Path

import matplotlib
import pytest

from scripts.docs_figures import FIGURES, RESULTS, main, read

NOT_IN_ITS_FILE = {"cpu/swift_search"}


def test_every_figure_of_the_repository_but_one_can_be_drawn_again() -> None:
    kept = {path.relative_to(RESULTS).with_suffix("").as_posix() for path in RESULTS.rglob("*.png")}
    assert kept == set(FIGURES) | NOT_IN_ITS_FILE


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_as_svg(name: str, tmp_path: Path) -> None:
    FIGURES[name](tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text(encoding="utf-8")


def test_the_bars_are_labelled_with_the_figures_of_the_file(tmp_path: Path) -> None:
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text as text
        FIGURES["cpu/tokens_per_verification"](tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    figures = {f"{row['tokens_per_verification']:.2f}" for row in read("cpu/tokens_per_verification.json")["rows"]}
    assert len(figures) > 10
    assert {figure for figure in figures if f">{figure}<" not in drawn} == set()


def test_the_command_draws_what_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Path] = []
    monkeypatch.setitem(FIGURES, "cpu/soak/griffin-tree", drawn.append)
    monkeypatch.setattr("sys.argv", ["docs_figures", "cpu/soak/griffin-tree"])
    main()
    assert drawn == [RESULTS / "cpu" / "soak" / "griffin-tree.png"]

"""The README's badges say what the project's files say, and stand in the README in words, too."""

from scripts.docs_badges import FILE, badges, facts
from tests.unit.docs_pages import ROOT


def test_the_badges_are_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == badges(), "run python -m scripts.docs_badges"


def test_the_readme_shows_them_and_says_the_same() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    said = ", ".join(f"{name} {value}" for name, value in facts().items())
    assert f"![{said}](" in readme
    assert FILE.relative_to(ROOT).as_posix() in readme


def test_they_say_versions() -> None:
    assert facts()["Python"] == "3.11 to 3.14"
    assert facts()["licence"] == "Apache-2.0"

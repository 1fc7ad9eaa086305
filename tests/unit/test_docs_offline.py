"""What of a built site would come from another host is found, and links to click are let alone."""

from pathlib import Path

import pytest

from scripts.docs_offline import loads

ELSEWHERE = "https://cdn.example/x"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", f'<script src="{ELSEWHERE}"></script>'),
        ("a.html", f'<p><img alt="" src="{ELSEWHERE}"/></p>'),
        ("a.html", '<script src="//cdn.example/x"></script>'),
        ("a.html", f'<link rel="stylesheet" href="{ELSEWHERE}">'),
        ("a.html", f'<link rel="preconnect" href="{ELSEWHERE}">'),
        ("a.html", f"<style>@font-face {{ src: url('{ELSEWHERE}') }}</style>"),
        ("a.html", f'<style>@import "{ELSEWHERE}";</style>'),
        ("a.html", f'<p style="background: url({ELSEWHERE})">x</p>'),
        ("a.svg", f'<svg><image xlink:href="{ELSEWHERE}"/></svg>'),
        ("styles/a.css", f"body {{ background: url({ELSEWHERE}) }}"),
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    (found,) = loads(tmp_path)
    assert found.startswith(f"{name}: ")
    assert found.endswith("//cdn.example/x")


def test_a_diagram_for_which_the_theme_loads_a_script_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<pre class="mermaid"><code>flowchart TD</code></pre>')
    assert loads(tmp_path) == ["a.html: Mermaid, for a diagram"]


def test_links_and_files_of_the_site_are_let_alone(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        f'<link rel="canonical" href="{ELSEWHERE}"><link rel="stylesheet" href="assets/a.css">'
        f'<script src="assets/a.js"></script><a href="{ELSEWHERE}">read</a><img src="data:image/png;base64,AA">'
        f"<p>url({ELSEWHERE})</p><svg xmlns='http://www.w3.org/2000/svg'></svg>"
    )
    (tmp_path / "a.css").write_text("@import 'b.css'; body { background: url(data:image/svg+xml,x) }")
    assert loads(tmp_path) == []

"""What a benchmark says while it runs, where there is no terminal to draw a bar on."""

import io

from rich.console import Console

from vllm_specext.bench.progress import shown


def test_without_a_terminal_stages_and_tenths_are_lines() -> None:
    out = io.StringIO()
    with shown(Console(file=out, width=100, force_terminal=False)) as progress:
        progress.doing("plain: loading")
        progress.begin(40)
        progress.doing("[tree] and plain")
        for _ in range(40):
            progress.advance()
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("plain: loading  (starting")
    assert lines[1].startswith("[tree] and plain  (0 of 40 turns")
    assert [line.split("(")[1].split()[0] for line in lines[2:]] == [str(4 * tenth) for tenth in range(1, 11)]


def test_on_a_terminal_there_is_a_bar() -> None:
    out = io.StringIO()
    with shown(Console(file=out, width=100, force_terminal=True, _environ={"TERM": "xterm"})) as progress:
        progress.begin(2)
        progress.doing("plain: loading")
        progress.advance()
        progress.bar.refresh()
        assert "1/2" in out.getvalue()

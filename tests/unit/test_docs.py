"""The documents: commands are run or say why not, what they quote exists, links resolve, tables are up to date."""

import ast
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from scripts.docs_tables import MARKED, TABLES, rewritten
from tests import forks
from tests.unit.docs_pages import PAGES, ROOT, Block, anchors, blocks, prose
from vllm_specext.cli import app
from vllm_specext.measure.arguments import ENVIRONMENT
from vllm_specext.measure.forks import Fork, find_all_imported, fork_command
from vllm_specext.measure.server import LOOK_SECONDS, free_port
from vllm_specext.options.check import parse
from vllm_specext.registry import METHODS

THIS = Path(__file__).relative_to(ROOT).as_posix()
COMMAND = re.compile(r"^\$? ?(make|pip|python3?|vllm|vllm-specext|docker|curl|mkdocs|pytest) ", re.MULTILINE)
SHELL = list(blocks("sh"))


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def quoted(text: str) -> Iterator[dict[str, Any]]:
    """Speculative configurations of our methods in a command or a block of JSON."""
    for found in re.findall(r"\{\"method\".*?\}", text, re.DOTALL):
        config = json.loads(found)
        if config["method"] in METHODS:
            yield config


# Commands


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_a_command_is_run_by_a_file_that_is_named_or_says_what_it_needs(block: Block) -> None:
    assert (block.needs is None) != (block.run_by is None), 'mark it: title="needs ..." or <!-- run by FILE -->'
    if block.run_by not in (None, THIS):
        runner = (ROOT / str(block.run_by)).read_text(encoding="utf-8")
        assert all(command in runner for command in block.commands)


@pytest.mark.parametrize("block", [block for block in blocks() if block.needs], ids=str)
def test_what_a_command_needs_is_in_the_text_too_because_github_hides_titles(block: Block) -> None:
    assert any(words(str(block.needs)) in words(paragraph) for paragraph in block.near)


def words(text: str) -> str:
    """Lower case, without punctuation and marks of Markdown."""
    return " ".join(re.findall(r"\w+", text.lower()))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_stand_in_blocks_of_the_language_sh(page: Path) -> None:
    others = [block for block in blocks() if block.page == page and block.language != "sh"]
    assert [block.body for block in others if COMMAND.search(block.body)] == []
    assert {block.language for block in others} <= {"", "json", "python", "text", "yaml"}


QUICK = sorted(
    {c for b in SHELL if b.run_by == THIS for c in b.commands if not re.match(r"curl|vllm-specext serve", c)}
)


@pytest.mark.parametrize("command", QUICK)
def test_a_quick_command_ends_well(command: str, tmp_path: Path) -> None:
    beside_python = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    program, *arguments = shlex.split(command)
    if (program, *arguments) == ("vllm-specext", "doctor"):  # which imports vLLM
        streams = tmp_path / "printed"
        done = forks.run_command(*arguments, environment=os.environ, streams=streams, folder=ROOT)
    else:
        done = subprocess.run(
            [program, *arguments],
            cwd=ROOT,
            env=os.environ | {"PATH": beside_python},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("block", [block for block in SHELL if block.needs], ids=str)
def test_what_a_command_names_exists_though_it_is_not_run(block: Block) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in block.commands:
        first, *words = shlex.split(command.partition(" -- ")[0])  # vLLM's own arguments follow
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        if first == "make":
            assert f"\n{words[0]}:" in makefile
        elif first == "python":
            assert words[0] == "-m"
            module = ROOT / words[1].replace(".", "/")
            source = (module / "__main__.py" if module.is_dir() else module.with_suffix(".py")).read_text()
            assert all(f'"{option}"' in source for option in options)
        elif first == "vllm-specext" and words[0] != "serve":
            node: Any = typer.main.get_command(app)
            while hasattr(node, "commands"):
                node = node.commands[words.pop(0)]
            assert set(options) <= {name for parameter in node.params for name in parameter.opts}


@pytest.mark.parametrize("block", [b for b in blocks("sh", "json") if '{"method"' in b.body], ids=str)
def test_a_speculative_configuration_is_accepted(block: Block) -> None:
    served = {"model": "the drafter itself"} if "-speculator." in block.body else {}
    for config in quoted(block.body):
        parse(METHODS[config["method"]].options, served | config)


@pytest.mark.slow
def test_the_bundled_server_starts_as_the_quick_start_says_and_answers(tmp_path: Path) -> None:
    here = [command for block in SHELL if block.run_by == THIS for command in block.commands]
    (serve,) = (shlex.split(command) for command in here if command.startswith("vllm-specext serve"))
    asking = [shlex.split(command) for command in here if command.startswith("curl")]
    port = free_port()
    log = tmp_path / "server.log"
    environment = os.environ | ENVIRONMENT
    server = fork_command([*serve[1:], "--port", str(port)], environment=environment, log=log, folder=ROOT)
    try:
        wait_until_healthy(server, f"http://localhost:{port}/health", log)
        assert len(asking) == 2
        for command in asking:
            answered = subprocess.run(
                [word.replace(":8000", f":{port}") for word in command], capture_output=True, timeout=60, check=True
            )
            assert json.loads(answered.stdout)["choices"][0]["text"]
    finally:
        server.terminate()
        server.wait(60)


PYTHON = [block for block in blocks("python") if block.run_by == THIS]


@pytest.mark.slow
@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_the_example_in_python_gives_the_same_tokens_with_drafts_and_without(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block.body, encoding="utf-8")
    environment = os.environ | ENVIRONMENT
    function, streams = f"{__name__}:{run_script.__name__}", tmp_path / "printed"
    done = forks.run(function, script, environment=environment, folder=ROOT, streams=streams, seconds=600)
    # Of a process that vLLM starts afresh, as it does for a user, the file is the main module too.
    assert re.search(r"^if __name__ == .__main__.:", block.body, re.MULTILINE)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "the same tokens: True" in done.stdout
    (tokens,) = re.findall(r"^tokens per verification: ([\d.]+)$", done.stdout, re.MULTILINE)
    assert float(tokens) > 1.5


def run_script(script: Path) -> None:
    find_all_imported()
    runpy.run_path(str(script), run_name="__main__")


def test_there_is_an_example_in_python() -> None:
    assert PYTHON


def wait_until_healthy(server: Fork, address: str, log: Path) -> None:
    until = time.monotonic() + 600
    while time.monotonic() < until:
        assert server.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(LOOK_SECONDS)
    raise TimeoutError(log.read_text(errors="replace")[-2000:])


# What the pages quote


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_tables_are_up_to_date(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == rewritten(page), "run python -m scripts.docs_tables"


def test_every_table_is_on_a_page() -> None:
    used = {found["name"] for page in PAGES for found in MARKED.finditer(page.read_text(encoding="utf-8"))}
    assert used == set(TABLES)


def test_every_measurement_is_on_a_page() -> None:
    """By itself, or by its folder where a measurement has many files."""
    texts = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    results = [path for path in (ROOT / "benchmarks" / "results").rglob("*") if path.suffix in (".json", ".png")]
    assert len(results) > 10
    named = {
        path: (path.relative_to(ROOT).as_posix(), f"`{path.parent.relative_to(ROOT).as_posix()}`") for path in results
    }
    assert [path.name for path, names in named.items() if not any(name in texts for name in names)] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert broken == []


def test_the_site_has_every_page_and_no_other() -> None:
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_tests_and_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, _, test in re.findall(r"`((?:tests|benchmarks|scripts|vllm_specext)/[\w/]+\.py)(::(\w+))?`", text):
        source = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {test}(" in source if test else source


def strings() -> list[str]:
    """Every string of the package, a NUL in the place of what is filled in."""
    found = []
    for path in (ROOT / "vllm_specext").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_the_messages_that_troubleshooting_quotes_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(messages) > 50
    known = strings()
    patterns = (".*".join(re.escape(piece.strip()) for piece in message.split("…")) for message in messages)
    missing = [
        message
        for message, pattern in zip(messages, patterns, strict=True)
        if not any(re.search(pattern, text, re.DOTALL) for text in known)
    ]
    assert missing == []

"""Arrows between the parts of the foreign tokenizers' methods go one way, and none comes from the engine."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
METHODS = "vllm_specext.methods.foreign_vocab"
ALLOWED = {"tokenizers": (), "text": ("tokenizers",), "distributions": ()}


def imported(folder: str) -> Iterator[str]:
    """The modules that files below a folder import, wherever in the file."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("part", ALLOWED)
def test_a_part_imports_itself_and_what_it_stands_on(part: str) -> None:
    shared = "vllm_specext.errors.", "vllm_specext.methods.end_ids."
    allowed = (*shared, *(f"{METHODS}.{name}." for name in (part, *ALLOWED[part])))
    found = [name for name in imported(f"vllm_specext/methods/foreign_vocab/{part}") if name.startswith("vllm")]
    assert found
    assert [name for name in found if not name.startswith(allowed)] == []


def test_the_engine_knows_no_foreign_tokenizer() -> None:
    found = list(imported("vllm_specext/engine"))
    assert any(name.startswith("vllm_specext.") for name in found)
    assert [name for name in found if "foreign" in name and not name.startswith("vllm_specext.options.")] == []

"""What the demonstration, ``bench`` and ``benchmarks`` share belongs to none of them, as their imports say."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = {
    file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): file
    for folder in ("vllm_specext/measure", "vllm_specext/bench", "vllm_specext/demo", "benchmarks")
    for file in (ROOT / folder).rglob("*.py")
}


def imported(file: Path) -> Iterator[str]:
    """Names of modules, wherever in the file they are imported, but for types alone."""
    todo: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


GRAPH = {name: {other for other in imported(file) if other in FILES and other != name} for name, file in FILES.items()}


def arrows(source: str, *targets: str) -> list[tuple[str, str]]:
    return [
        (name, other)
        for name, others in GRAPH.items()
        for other in others
        if name.startswith(source) and other.startswith(targets)
    ]


def test_what_is_shared_imports_none_of_those_who_share_it() -> None:
    assert arrows("vllm_specext.measure", "vllm_specext.bench", "vllm_specext.demo", "benchmarks") == []
    assert len(arrows("vllm_specext.bench", "vllm_specext.measure")) > 10


def test_neither_bench_nor_the_benchmarks_stand_on_the_demonstration_nor_it_on_them() -> None:
    assert arrows("vllm_specext.bench", "vllm_specext.demo", "benchmarks") == []
    # The ablations train as the bundled drafters are trained: on their text.
    trainers = {f"vllm_specext.demo.{name}" for name in ("training_text", "tokens")}
    standing = arrows("benchmarks", "vllm_specext.demo")
    assert [one for one in standing if not (one[0].startswith("benchmarks.ablation") and one[1] in trainers)] == []
    assert arrows("vllm_specext.demo", "vllm_specext.bench", "benchmarks") == []


def test_no_imports_go_round_in_a_circle() -> None:
    reached = {name: set(others) for name, others in GRAPH.items()}
    for between in GRAPH:
        for others in reached.values():
            if between in others:
                others |= reached[between]
    assert [name for name, others in reached.items() if name in others] == []


def test_there_is_one_engine_that_sets_the_schedule_of_a_running_scheduler() -> None:
    texts = {name: file.read_text(encoding="utf-8") for name, file in FILES.items()}
    assert [name for name, text in texts.items() if "class Engine:" in text] == ["vllm_specext.measure.engine"]
    assert [name for name, text in texts.items() if "dynamic_sd_lookup" in text] == ["vllm_specext.measure.engine"]

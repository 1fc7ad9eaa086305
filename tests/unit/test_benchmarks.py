"""The benchmarks without an engine: what they make of results, and that what they watch is there."""

import io
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks import cache_memory, drafters, engines, step_parts, step_profile, stopwatch
from benchmarks.stopwatch import Stopwatch, Watched
from vllm_specext.demo.run import Speculation
from vllm_specext.errors import ConfigurationError

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def text(table: Table) -> str:
    """As in a terminal of 80 columns, which cuts off what does not fit."""
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


# The stopwatch, by a clock that only the watched functions move.


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """``outer`` takes 3 s and then ``inner``, which takes 2 s; ``fails`` takes 1 s."""
    clock = types.SimpleNamespace(now=0.0)

    def inner(kind: str = "") -> str:
        clock.now += 2
        return kind

    def outer(**how: Any) -> str:
        clock.now += 3
        return made.inner(**how)

    def fails() -> None:
        clock.now += 1
        raise InterruptedError

    made = types.SimpleNamespace(inner=inner, outer=outer, fails=fails, clock=lambda: clock.now)
    monkeypatch.setattr(stopwatch, "importlib", types.SimpleNamespace(import_module=lambda name: made))
    return made


def watch(program: Any, *functions: Watched) -> Stopwatch:
    watching = Stopwatch(program.clock)
    for function in functions:
        watching.wrap(function)
    return watching


OUTER, INNER = Watched("outer", "program:outer"), Watched("inner", "program:inner")


def test_a_parts_time_is_without_that_of_parts_inside_it(program: Any) -> None:
    watching = watch(program, OUTER, INNER)
    program.outer()
    program.inner()
    assert watching.seconds == {"outer": 3, "inner": 4}
    assert watching.calls == {"outer": 1, "inner": 2}
    alone = watch(program, OUTER)  # wraps what is wrapped already
    program.outer()
    assert alone.seconds == {"outer": 5}


def test_a_call_that_raises_is_timed_and_closed(program: Any) -> None:
    watching = watch(program, OUTER, Watched("fails", "program:fails"))
    with pytest.raises(InterruptedError):
        program.fails()
    program.outer()
    assert watching.seconds == {"fails": 1, "outer": 5}


def test_calls_outside_of_a_part_are_their_callers(program: Any) -> None:
    watching = watch(program, OUTER, Watched("inner", "program:inner", within="outer"))
    program.inner()
    assert watching.seconds == {}
    program.outer()
    assert watching.seconds == {"outer": 3, "inner": 2}
    elsewhere = watch(program, Watched("whole", "program:outer"), Watched("inner", "program:inner", within="another"))
    program.outer()
    assert elsewhere.seconds == {"whole": 5}


def test_one_function_is_told_apart_by_its_arguments(program: Any) -> None:
    kinds = [Watched(kind, "program:inner", given=(("kind", kind),)) for kind in ("self", "cross")]
    watching = watch(program, *kinds)
    assert program.inner(kind="self") == "self"
    program.outer(kind="self")
    program.inner()
    assert watching.seconds == {"self": 4}
    assert watching.called == {kinds[0]}


def test_cleared_it_has_seen_nothing(program: Any) -> None:
    watching = watch(program, INNER)
    program.inner()
    watching.clear()
    assert (watching.seconds, watching.calls, watching.called) == ({}, {}, set())


# The profile of a step.


@pytest.mark.parametrize("function", step_parts.FUNCTIONS, ids=lambda function: f"{function.part}: {function.path}")
def test_every_watched_function_is_there(function: Watched) -> None:
    import vllm.v1.worker.cpu.shm  # noqa: F401  # on a CPU the runner's modules need it first

    assert callable(function.resolve()[2])


def test_no_configuration_watches_a_function_for_two_parts() -> None:
    for speculative in step_profile.CONFIGURATIONS.values():
        watched = [(function.path, function.given) for function in step_parts.functions_of(speculative)]
        assert len(watched) == len(set(watched))


def test_every_function_belongs_to_a_configuration() -> None:
    belonging = {
        function
        for speculative in step_profile.CONFIGURATIONS.values()
        for function in step_parts.functions_of(speculative)
    }
    assert belonging == set(step_parts.FUNCTIONS)


def test_parts_belong_to_the_methods_that_have_them() -> None:
    parts = {
        name: {function.part for function in step_parts.functions_of(speculative)}
        for name, speculative in step_profile.CONFIGURATIONS.items()
    }
    assert parts["plain"] == {"scheduler", "inputs", "target", "sampling and walk"}
    own = {"gather", "LSA, keys and values", "self-attention", "cross-attention", "growth, rest"}
    assert own <= parts["moa, chain of 4"] < parts["moa, tree of 24"]
    assert not own & parts["griffin, tree of 24"]
    assert parts["griffin, tree of 24"] - parts["moa, tree of 24"] == {"first pass", "levels"}


def test_a_part_that_is_never_called_is_an_error(program: Any) -> None:
    watching = watch(program, OUTER, INNER)
    program.inner()
    step_profile.refuse_uncalled([INNER], watching)
    with pytest.raises(RuntimeError, match=r"never called.*: program:outer \(outer\)\.$"):
        step_profile.refuse_uncalled([OUTER, INNER], watching)


class Engine:
    """Reads prompts in its first step; emits two tokens for every request in each later one."""

    def __init__(self, program: Any) -> None:
        self.program, self.emitted, self.limit = program, dict[str, int](), 0

    def add_request(self, request: str, prompt: Any, params: Any) -> None:
        self.emitted[request], self.limit = 0, params.max_tokens

    def has_unfinished_requests(self) -> bool:
        return bool(self.emitted)

    def step(self) -> list[Any]:
        self.program.outer()
        outputs = []
        for request, before in list(self.emitted.items()):
            self.emitted[request] = min(self.limit, before + 2 if before else 1)
            tokens = [0] * self.emitted[request]
            outputs.append(types.SimpleNamespace(request_id=request, outputs=[types.SimpleNamespace(token_ids=tokens)]))
            if self.emitted[request] == self.limit:
                del self.emitted[request]
        return outputs


def test_prompts_are_read_before_steps_are_timed(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_profile, "PARTS", ("target", "inner"))
    functions = [Watched("target", "program:outer"), INNER]
    found = step_profile.measure(Engine(program), 2, watch(program, *functions), functions)
    assert found["prompts_milliseconds"] == 5000
    assert found["steps"] == 32
    assert found["tokens_per_step"] == 63 / 32
    assert found["milliseconds"] == {"target": 3000, "inner": 2000, "engine": 0}


def profiles() -> dict[str, Any]:
    """Of all configurations, where every part takes its place in the order in milliseconds."""

    def one(speculative: dict[str, Any] | None, batch: int) -> dict[str, Any]:
        own = {function.part for function in step_parts.functions_of(speculative)} | {step_profile.ENGINE_ITSELF}
        order = (*step_parts.PARTS, step_profile.ENGINE_ITSELF)
        times = {part: float(place) for place, part in enumerate(order, 1) if part in own}
        return {"steps": 9, "tokens_per_step": 2.5, "prompts_milliseconds": 77.0 * batch, "milliseconds": times}

    return {
        name: {str(batch): one(speculative, batch) for batch in step_profile.BATCHES}
        for name, speculative in step_profile.CONFIGURATIONS.items()
    }


def test_the_profiles_table_has_a_row_for_each_part_and_no_time_where_there_is_no_part() -> None:
    shown = text(step_profile.table(profiles(), 16))
    assert "…" not in shown
    lines = [line.strip() for line in shown.splitlines()]
    for part in (*step_parts.PARTS, "engine"):
        assert any(line.startswith(part) for line in lines)
    (scheduler,), (gather,), (step,) = (
        [line.split() for line in lines if line.startswith(part)] for part in ("scheduler", "gather", "step")
    )
    assert scheduler == ["scheduler", *["1.00"] * 6]
    assert gather == ["gather", "10.00", "10.00"]
    assert float(step[1]) == 1 + 2 + 4 + 6 + 19


# Drafters.


def answered(tokens: list[int], accepted: tuple[int, ...]) -> tuple[list[int], Speculation]:
    return tokens, Speculation(10, 240, accepted)


LOOP = [1, 2, 3, 4, 5, 6, 7, 8] * 4
PLAIN: drafters.Answers = [(list(range(9)), Speculation()), (LOOP, Speculation()), (list(range(5)), Speculation())]
KINDS = ("code", "code", "prose")
GIVEN: drafters.Answers = [answered(list(range(9)), (9, 5)), answered(LOOP, (10, 10)), answered(list(range(5)), (5, 1))]


def test_loops_do_not_count_and_kinds_are_told_apart(tmp_path: Path) -> None:
    row = drafters.summary("griffin", tmp_path, GIVEN, PLAIN, KINDS)
    assert row["tokens_per_verification"] == 2.0
    assert row["by_kind"] == {"code": 2.4, "prose": 1.6}
    assert row["accepted_per_depth"] == [0.7, 0.3]
    assert (row["nodes_per_verification"], row["verifications"]) == (24, 20)
    assert row["identical"] is True
    assert (row["training_steps"], row["drafter_alone"]) == (None, None)


def test_one_other_token_is_not_identical(tmp_path: Path) -> None:
    given = [answered([*range(8), 7], (9, 5)), *GIVEN[1:]]
    assert drafters.summary("griffin", tmp_path, given, PLAIN, KINDS)["identical"] is False


def test_a_checkpoints_folder_tells_of_its_training() -> None:
    griffin, moa = (drafters.from_folder(Path(drafters.BUNDLED[name]["model"])) for name in ("griffin", "moa N=0"))
    assert griffin["training_steps"] == 400 + 150 + 420
    assert moa["training_steps"] == 1400
    assert moa["drafter_alone"]["prose greedy"] == 3.163


def rows() -> list[dict[str, Any]]:
    names = ("griffin", "moa without blocks, short")
    own = {"identical": False, "training_steps": 400, "accepted_per_depth": [0.7, 0.3, 0.2, 0.1]}
    return [drafters.summary(name, Path("nowhere"), GIVEN, PLAIN, KINDS) | own for name in names]


def test_the_drafters_table_fits_a_terminal() -> None:
    shown = text(drafters.table(rows(), "caption")).splitlines()
    (line,) = (line for line in shown if line.strip().startswith("moa without"))
    figures = ["400", "2.00", "2.40", "1.60", "0.70", "0.30", "0.20", "0.10", "NO"]
    assert line.split()[-len(figures) :] == figures
    assert not any("…" in line for line in shown)


def test_extra_folders_are_served_as_their_configuration_says() -> None:
    """None of the keys is set that would overrule the checkpoint's."""
    found = drafters.drafters([("again", drafters.BUNDLED["moa N=0"]["model"])])
    assert list(found) == ["griffin", "moa N=0", "again"]
    assert found["again"] == drafters.BUNDLED["moa N=0"]
    assert "target_layer_inference" not in found["again"]


def test_a_bad_folder_is_refused_in_a_sentence_before_any_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafters, "answers", lambda *args: pytest.fail("an engine was started"))
    for extra, said in (
        (["x", "nowhere"], "error: --extra 'x': nowhere is not a folder."),
        (["x", str(tmp_path)], f"error: {tmp_path} has no config.json"),
        (["griffin", str(tmp_path)], "error: --extra names 'griffin', but there is a drafter of that name already."),
    ):
        monkeypatch.setattr("sys.argv", ["drafters", "--extra", *extra])
        with pytest.raises(SystemExit) as ended:
            drafters.main()
        assert str(ended.value).startswith(said)
        assert "\n" not in str(ended.value)


def test_a_drafter_of_another_kind_is_no_moa_checkpoint() -> None:
    with pytest.raises(ConfigurationError, match="MoA"):
        drafters.drafters([("x", drafters.BUNDLED["griffin"]["model"])])


def test_what_an_engine_prints_last_comes_back_and_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: dict[str, Any] = {"returncode": 0, "stdout": 'a log line\n{"tokens": [1]}\n', "stderr": ""}

    def run(command: list[str], **kwargs: Any) -> Any:
        assert command[1:] == ["-m", "benchmarks.drafters", "--one", "null"]
        assert kwargs["env"]["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        return types.SimpleNamespace(**ran)

    monkeypatch.setattr(engines.subprocess, "run", run)
    assert engines.in_own_process("benchmarks.drafters", "plain", None) == {"tokens": [1]}
    ran |= {"returncode": 1, "stderr": "out of memory"}
    with pytest.raises(SystemExit, match=r"^plain: the engine ended\.\nout of memory$"):
        engines.in_own_process("benchmarks.drafters", "plain", None)


# Memory of the cache.


def cache(blocks_outermost: bool) -> Any:
    """Two layers of 64 bytes a token and one of 128, 10 blocks of 4 tokens."""
    small, large, blocks = 4 * 64, 4 * 128, 10
    size = blocks * (2 * small + large)
    strides = (
        ((small, 2 * small + large), (large, 2 * small + large))
        if blocks_outermost
        else ((small * blocks, small), (large * blocks, large))
    )
    tensors = [
        types.SimpleNamespace(size=size, layers=layers, layer_stride=layer, block_stride=block)
        for layers, (layer, block) in zip((["a", "b"], ["c"]), strides, strict=True)
    ]
    group = types.SimpleNamespace(layer_names=["a", "b", "c"], kv_cache_spec=types.SimpleNamespace(block_size=4))
    return types.SimpleNamespace(num_blocks=blocks, kv_cache_tensors=tensors, kv_cache_groups=[group])


@pytest.mark.parametrize("blocks_outermost", [False, True])
def test_layers_bytes_are_read_from_either_layout(blocks_outermost: bool) -> None:
    assert cache_memory.bytes_per_token(cache(blocks_outermost)) == {"a": 64, "b": 64, "c": 128}


def test_layers_that_do_not_fill_the_allocation_are_an_error() -> None:
    config = cache(False)
    config.kv_cache_tensors[1].layers = ["c", "d"]
    with pytest.raises(RuntimeError, match="a token takes 256 bytes, but its layers 384"):
        cache_memory.bytes_per_token(config)


def test_what_a_drafter_adds_is_what_the_target_alone_lacks() -> None:
    found = cache_memory.rows({"plain": {"a": 64, "b": 64}, "moa": {"a": 64, "b": 64, "c": 32}})
    assert (found[0]["target_bytes_per_token"], found[0]["drafter_bytes_per_token"]) == (128, 32)
    assert found[0]["drafter_share"] == 0.25
    shown = text(cache_memory.table(found))
    assert "25.0%" in shown
    assert "…" not in shown


def test_llama_3_8bs_cache_by_hand() -> None:
    found = [row for row in cache_memory.rows({"plain": {}}) if row["target"].startswith("Llama 3 8B")]
    assert {row["drafter"]: row["drafter_bytes_per_token"] for row in found} == {"griffin": 16 << 10, "moa": 4 << 10}
    assert all("arithmetic" in row["origin"] for row in found)


# Files.


def test_plots_are_written(tmp_path: Path) -> None:
    step_profile.plot(profiles(), tmp_path / "profile.png")
    drafters.plot(rows(), tmp_path / "drafters.png")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda path: path.name)
def test_results_name_no_place_on_a_machine(path: Path) -> None:
    def strings(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            value = [*value, *value.values()]
        if isinstance(value, list):
            for one in value:
                yield from strings(one)
        elif isinstance(value, str):
            yield value

    assert not [one for one in strings(json.loads(path.read_text())) if one.startswith(("/", "~", "file:"))]

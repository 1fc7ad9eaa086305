"""The profile of a step without an engine: the stopwatch, that what it watches is there, and the table."""

import types
from pathlib import Path
from typing import Any

import pytest

from benchmarks import step_parts, step_profile, stopwatch
from benchmarks.stopwatch import Stopwatch, Watched
from tests.unit.terminal import shown_on_80_columns

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


class FakeEngine:
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
    found = step_profile.measure(FakeEngine(program), 2, watch(program, *functions), functions)
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
    shown = shown_on_80_columns(step_profile.table(profiles(), 16))
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


def test_the_profiles_picture_is_written(tmp_path: Path) -> None:
    step_profile.plot(profiles(), tmp_path / "profile.png")
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")

"""How engines are compared: turns beside plain decoding, every size on one engine, loops left out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vllm_specext.bench import offline
from vllm_specext.bench.configurations import Configuration, after_stock
from vllm_specext.bench.prompts import Prompt
from vllm_specext.bench.workload import Workload
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import GRIFFIN_TREE
from vllm_specext.measure.plain import STOCK
from vllm_specext.measure.sampling import GREEDY, Sampling
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Answer, Turn

LOOP = [1, 2, 3, 4] * 10
VARIED = list(range(40))
CONFIGURATIONS = [
    Configuration("plain"),
    Configuration("ngram", {"method": "ngram", "num_speculative_tokens": 4}),
    Configuration("tree", GRIFFIN_TREE),
]
PROMPTS = [Prompt("code", "a"), Prompt("code", "loops"), Prompt("prose", "b"), Prompt("prose", "x" * 500)]


class Quiet:
    """Counts what a bar would show."""

    def __init__(self) -> None:
        self.total, self.done = 0, 0

    def begin(self, total: int) -> None:
        self.total = total

    def doing(self, stage: str) -> None:
        pass

    def advance(self) -> None:
        self.done += 1


class Rendering:
    def __init__(self, target: str) -> None:
        pass

    def text(self, prompt: Prompt, answers: list[str]) -> str:
        return prompt.text

    def ids(self, prompt: Prompt, answers: list[str]) -> list[int]:
        return [ord(char) for char in prompt.text]


DURATIONS = {"plain-stock": 5.0, "plain": 4.0}


class Fake:
    """Twice as fast as plain with drafts, and with a word of its own for one prompt if asked to be wrong. vLLM as it is
    is slower and rounds otherwise."""

    def __init__(self, configuration: Configuration, log: list[Any], wrong: bool) -> None:
        self.name, self.log, self.wrong = configuration.name, log, wrong
        self.facts = {"model_runner": "V2", "max_model_len": 100, "max_num_seqs": 16}
        log.append(("loaded", configuration.name, configuration.speculative))

    def turn(
        self,
        prompts: list[list[int]],
        tokens: int,
        concurrency: int,
        nodes: int | None = None,
        sampling: Sampling = GREEDY,
    ) -> Turn:
        texts = ["".join(map(chr, prompt)) for prompt in prompts]
        self.log.append((self.name, texts, tokens, concurrency, nodes))
        own = [LOOP if text == "loops" else VARIED for text in texts]
        if self.wrong and self.name == "tree":
            own[-1] = [*VARIED[:-1], 99]
        if self.name == STOCK:
            own[0] = [98, *VARIED[1:]]
        if not sampling.is_greedy:
            # What is drawn depends on the temperature, and with vLLM's own method on the method too.
            own = [[int(100 * sampling.temperature) + (self.name == "ngram"), *tokens[1:]] for tokens in own]
        nothing = self.name in DURATIONS or nodes == 0
        drafted = Speculation() if nothing else Speculation(10, 10 * (nodes or 4), (8, 4))
        duration = DURATIONS.get(self.name, 1.5 if nothing else 2.0)
        return Turn(
            [Answer(tokens, 0.1, 1.0, len(text)) for tokens, text in zip(own, texts, strict=True)], duration, drafted
        )


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return faked(monkeypatch, wrong=False)


def faked(monkeypatch: pytest.MonkeyPatch, wrong: bool) -> list[Any]:
    log: list[Any] = []

    @contextmanager
    def load(configuration: Configuration, workload: Workload, folder: Path) -> Iterator[Fake]:
        yield Fake(configuration, log, wrong)
        log.append(("ended", configuration.name))

    monkeypatch.setattr(offline, "load", load)
    monkeypatch.setattr(offline, "Rendering", Rendering)
    return log


def work(rounds: int = 2, stock: bool = False) -> Workload:
    configurations = after_stock(CONFIGURATIONS) if stock else CONFIGURATIONS
    return Workload(None, configurations, PROMPTS, tokens=40, rounds=rounds)


def test_a_sweep_takes_turns_and_measures_every_size_on_one_engine(log: list[Any]) -> None:
    progress: Any = Quiet()
    results = offline.compare("sweep", work(), [1, 4], [8, 24], progress)
    loaded = [entry[1] for entry in log if entry[0] == "loaded"]
    assert loaded == ["plain", "ngram", "tree"]
    (tree,) = (entry[2] for entry in log if entry[:2] == ("loaded", "tree"))
    assert tree["num_speculative_tokens"] == 24
    timed = [(entry[0], *entry[3:]) for entry in log if len(entry) == 5 and entry[3] in (1, 4)]
    for concurrency in (1, 4):
        ngram = [("ngram", concurrency, None)]
        tree = [("tree", concurrency, 8), ("tree", concurrency, 24)]
        plain = [("plain", concurrency, None)]
        # Passes are recorded in the first turn of each, which nothing is compared with.
        assert [entry for entry in timed if entry[1] == concurrency] == [
            *(ngram + (plain + ngram) * 2),
            *(tree + (plain + tree) * 2),
        ]
    assert progress.done == progress.total == len(timed)
    found = [(row["method"], row["num_speculative_tokens"], row["max_concurrency"]) for row in results.rows]
    expected = [("plain", None), ("ngram", 4), ("tree", 8), ("tree", 24)]
    assert sorted(found, key=str) == sorted(((*one, at_once) for one in expected for at_once in (1, 4)), key=str)
    assert {row["speedup"] for row in results.rows if row["method"] != "plain"} == {2.0}
    assert all(row["identical"] for row in results.rows)


def test_where_vllm_as_it_is_differs_speed_is_relative_to_it_and_tokens_are_compared_with_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = faked(monkeypatch, wrong=True)
    progress: Any = Quiet()
    results = offline.compare("sweep", work(stock=True), [1, 4], [8, 24], progress)
    assert [entry[1] for entry in log if entry[0] == "loaded"] == [STOCK, "plain", "ngram", "tree"]
    timed = [entry[0] for entry in log if len(entry) == 5 and entry[3] == 4]
    each = (["plain"], ["ngram"], ["tree", "tree"])
    assert timed == [name for own in each for name in own + [STOCK, *own] * 2]
    assert progress.done == progress.total
    found = {row["method"]: (row["speedup"], row["identical"]) for row in results.rows}
    assert list(found) == [STOCK, "plain", "ngram", "tree"]
    assert found == {STOCK: (1.0, False), "plain": (1.25, True), "ngram": (2.5, True), "tree": (2.5, False)}
    assert {row["max_concurrency"] for row in results.rows if row["method"] == STOCK} == {1, 4}


def test_acceptance_has_no_row_of_vllm_as_it_is(log: list[Any]) -> None:
    progress: Any = Quiet()
    rows = offline.acceptance(work(stock=True), progress).rows
    assert rows == offline.acceptance(work(), progress).rows
    assert STOCK not in {entry[1] for entry in log if entry[0] == "loaded"}


def test_sizes_are_compared_with_no_nodes_on_the_same_engine(log: list[Any]) -> None:
    progress: Any = Quiet()
    rows = offline.compare("sweep", work(), [4], [0, 8], progress).rows
    assert [entry[4] for entry in log if len(entry) == 5 and entry[0] == "tree" and entry[3] == 4] == [0, 8] * 3
    ratios = {(row["method"], row["num_speculative_tokens"]): row.get("ratio_to_no_nodes") for row in rows}
    # A fake engine takes three quarters of the time where it drafts nothing.
    assert ratios == {("plain", None): None, ("ngram", 4): None, ("tree", 0): 1.0, ("tree", 8): 0.75}
    assert "spec_decode_num_drafts" not in next(row for row in rows if row["num_speculative_tokens"] == 0)


def test_where_fewer_prompts_count_than_run_at_a_time_they_are_asked_again(log: list[Any]) -> None:
    progress: Any = Quiet()
    offline.compare("throughput", work(), [1, 5], [], progress)
    asked = {entry[3]: entry[1] for entry in log if len(entry) == 5 and entry[0] == "tree"}
    assert asked == {1: ["a", "b"], 5: ["a", "b", "a", "b", "a"]}


def test_loops_and_long_prompts_are_left_out_and_counted(log: list[Any]) -> None:
    progress: Any = Quiet()
    results = offline.compare("throughput", work(), [1], [], progress)
    assert all(entry[1] == ["a", "b"] for entry in log if len(entry) == 5 and entry[3] == 1)
    assert results.prompts == {
        "counted": 2,
        "left_out_as_too_long": 1,
        "left_out_as_loops": 1,
        "counted_by_task": {"code": 1, "prose": 1},
    }


def test_other_tokens_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    faked(monkeypatch, wrong=True)
    progress: Any = Quiet()
    rows = offline.compare("throughput", work(), [1], [], progress).rows
    assert {row["method"]: row["identical"] for row in rows} == {"plain": True, "ngram": True, "tree": False}
    rows = offline.acceptance(work(), progress).rows
    assert {row["task"]: row["identical"] for row in rows if row["method"] == "tree"}["all"] is False


def test_acceptance_has_a_row_for_each_task_and_one_for_all(log: list[Any]) -> None:
    progress: Any = Quiet()
    rows = offline.acceptance(work(), progress).rows
    assert [(row["method"], row["task"]) for row in rows] == [
        (name, task) for name in ("plain", "ngram", "tree") for task in ("code", "prose", "all")
    ]
    whole = rows[-1]
    assert (whole["completed"], whole["spec_decode_num_drafts"]) == (2, 20)
    assert whole["spec_decode_acceptance_length"] == 2.2
    assert whole["nodes_per_verification"] == 4
    assert progress.done == progress.total
    # What is drafted may depend on the load, so only one request is asked at a time.
    assert {entry[3] for entry in log if len(entry) == 5 and entry[0] == "tree"} == {1}


WARM = Sampling(0.7, 0.9)


def test_every_sampling_is_measured_and_compared_with_plain_decoding_by_the_same(log: list[Any]) -> None:
    progress: Any = Quiet()
    both = replace(work(stock=True), samplings=(GREEDY, WARM))
    rows = offline.compare("throughput", both, [1, 4], [], progress).rows
    assert progress.done == progress.total
    identical = {(row["method"], row["temperature"]): row["identical"] for row in rows if row["max_concurrency"] == 4}
    assert identical == {
        (STOCK, 0): False,
        (STOCK, 0.7): True,
        ("plain", 0): True,
        ("plain", 0.7): True,
        ("ngram", 0): True,
        ("ngram", 0.7): False,
        ("tree", 0): True,
        ("tree", 0.7): True,
    }
    assert {(row["temperature"], row["top_p"]) for row in rows} == {(0, 1), (0.7, 0.9)}
    unpromised = {(row["method"], row["temperature"]) for row in rows if not row["same_tokens_promised"]}
    assert unpromised == {(STOCK, 0.7), ("ngram", 0.7)}
    rows = offline.acceptance(both, progress).rows
    assert len(rows) == 2 * 3 * 3
    wrong = {(row["method"], row["temperature"]) for row in rows if not row["identical"]}
    assert wrong == {("ngram", 0.7)}


def test_more_at_a_time_than_the_engine_runs_is_refused(log: list[Any]) -> None:
    progress: Any = Quiet()
    with pytest.raises(ConfigurationError, match="--concurrency is 32, but the engine runs at most 16"):
        offline.compare("throughput", work(), [1, 32], [], progress)
    assert progress.total == 0

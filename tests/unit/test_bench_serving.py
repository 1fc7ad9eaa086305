"""What is told to ``vllm bench serve``, what is made of its JSON, and what the command line refuses."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specext.bench import servers, serving, vllm_bench
from vllm_specext.bench.configurations import NGRAM, Configuration, after_stock
from vllm_specext.bench.prompts import Prompt, Rendering, question
from vllm_specext.bench.servers import Model, model_of
from vllm_specext.bench.workload import Asked, Chosen, Workload
from vllm_specext.cli import main
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import served
from vllm_specext.measure.sampling import GREEDY, Sampling
from vllm_specext.measure.turns import Answer

command_line = import_module("vllm_specext.cli.bench")


def run_of(**more: Any) -> dict[str, Any]:
    """As ``vllm bench serve`` writes it."""
    own = {"num_prompts": 2, "completed": 2, "failed": 0, "request_rate": 4.0, "median_e2el_ms": 100.0}
    return own | {"generated_texts": ["a", "b"], "ttfts": [0.1, 0.2], "errors": ["", ""]} | more


def test_vllms_keys_stay_and_numbers_are_medians_of_the_rounds() -> None:
    own = [run_of(median_e2el_ms=ms, median_ttft_ms=ms / 10) for ms in (50.0, 40.0, 100.0)]
    plain = [run_of(), run_of(), run_of()]
    row = serving.of_runs(own, plain)
    assert (row["median_e2el_ms"], row["median_ttft_ms"], row["request_rate"]) == (50.0, 5.0, 4.0)
    assert (row["speedup_lowest"], row["speedup"], row["speedup_highest"]) == (1.0, 2.0, 2.5)
    assert row["identical"] is True
    assert not set(vllm_bench.LISTS) & set(row)


def test_another_text_is_not_identical_and_without_plain_nothing_is_said() -> None:
    assert serving.of_runs([run_of(generated_texts=["a", "c"])], [run_of()])["identical"] is False
    assert not {"identical", "speedup"} & set(serving.of_runs([run_of()], None))


def test_the_prompts_are_asked_greedily_in_their_order(tmp_path: Path) -> None:
    given = vllm_bench.arguments("http://x", "m", "t", tmp_path / "p.jsonl", 3, 48, 2.5, tmp_path / "r.json")
    assert {"--temperature=0", "--disable-shuffle", "--request-rate=2.5", "--num-prompts=3"} <= set(given)
    assert {f"--result-dir={tmp_path}", "--result-filename=r.json", "--custom-output-len=48", "--num-warmups=4"} <= set(
        given
    )


def test_drawn_answers_have_a_seed(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    given = vllm_bench.arguments("http://x", "m", "t", path, 3, 48, 2.5, path, Sampling(0.7, 0.9))
    assert {"--temperature=0.7", "--top-p=0.9", '--extra-body={"seed": 0}'} <= set(given)
    greedy = vllm_bench.arguments("http://x", "m", "t", path, 3, 48, 2.5, path)
    assert not any(one.startswith(("--top-p", "--extra-body")) for one in greedy)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a fake of the command writes and ends with."""
    does: dict[str, Any] = {"result": run_of(), "status": 0}

    def fork(function: str, arguments: list[list[str]], *, stderr: Path, **how: Any) -> Any:
        assert function == "vllm_specext.bench.vllm_bench:bench_serve"
        if does["result"] is not None:
            Path(arguments[0][-1]).write_text(json.dumps(does["result"]))
        stderr.write_text("no such model")
        return SimpleNamespace(wait=lambda: does["status"])

    monkeypatch.setattr(vllm_bench, "Fork", fork)
    return does


def test_its_json_is_read(vllm: dict[str, Any], tmp_path: Path) -> None:
    assert vllm_bench.run([str(tmp_path / "r.json")], tmp_path / "r.json") == run_of()
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_a_run_that_fails_is_told(vllm: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(run_of()))  # of an earlier run
    vllm |= {"result": None, "status": 1}
    with pytest.raises(ConfigurationError, match=r"ended with status 1\.\nno such model"):
        vllm_bench.run([str(path)], path)
    vllm |= {"result": run_of(failed=1, errors=["", "Bad Request"]), "status": 0}
    with pytest.raises(ConfigurationError, match="1 of 2 requests failed: Bad Request"):
        vllm_bench.run([str(path)], path)


TIMES = {"plain-stock": 120.0, "plain": 100.0}
"""Until an answer's end, in milliseconds."""


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


@pytest.mark.parametrize("first", ["plain", "plain-stock"])
def test_servers_take_turns_with_plain_at_every_rate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: str
) -> None:
    log: list[tuple[str, str]] = []

    @contextmanager
    def started(configuration: Configuration, *of: Any) -> Iterator[Any]:
        log.append(("started", configuration.name))
        yield SimpleNamespace(url=f"http://{configuration.name}", model_runner="V1")
        log.append(("ended", configuration.name))

    def run(given: list[str], result: Path) -> dict[str, Any]:
        (url,) = (one.removeprefix("--base-url=http://") for one in given if one.startswith("--base-url="))
        (rate,) = (one.removeprefix("--request-rate=") for one in given if one.startswith("--request-rate="))
        log.append((url, rate))
        assert result not in results
        results.append(result)
        texts = ["a", "other" if url == "plain-stock" else "b"]
        return run_of(request_rate=float(rate), median_e2el_ms=TIMES.get(url, 80.0), generated_texts=texts)

    results: list[Path] = []
    monkeypatch.setattr(serving, "started", started)
    monkeypatch.setattr(vllm_bench, "run", run)
    monkeypatch.setattr(serving, "model_of", lambda url: Model("m", "bundled", 100))
    monkeypatch.setattr(serving, "chosen", lambda *of, **how: Chosen([Asked("code", [1], "a")], 0, 0))
    configurations = [Configuration("plain"), Configuration("ngram", NGRAM), Configuration("other", NGRAM)]
    if first == "plain-stock":
        configurations = after_stock(configurations)
    work = Workload(None, configurations, [Prompt("code", "a")], tokens=8, rounds=2)
    progress: Any = Quiet()
    rows = serving.serve(work, [1.0, 4.0], tmp_path, progress).rows
    assert log[0] == ("started", first)
    assert log[-1] == ("ended", first)
    others = [each.name for each in configurations[1:]]
    for name in others:
        own = log[log.index(("started", name)) + 1 : log.index(("ended", name))]
        assert own == [(one, rate) for rate in ("1.0", "4.0") for _ in range(2) for one in (first, name)]
    assert progress.done == progress.total == len(results)
    found = {(row["method"], row["request_rate"]): row["speedup"] for row in rows}
    expected = {name: TIMES[first] / TIMES.get(name, 80.0) for name in (first, *others)}
    assert found == {(name, rate): ratio for name, ratio in expected.items() for rate in (1.0, 4.0)}
    assert {row["method"]: row["identical"] for row in rows} == {name: name != "plain-stock" for name in expected}


def test_running_servers_may_include_vllm_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(given: list[str], result: Path) -> dict[str, Any]:
        (name,) = (one.removeprefix("--base-url=") for one in given if one.startswith("--base-url="))
        files.append(result.name)
        return run_of(median_e2el_ms=TIMES.get(name, 80.0), generated_texts=["other" if name in differing else "a"])

    monkeypatch.setattr(vllm_bench, "run", run)
    monkeypatch.setattr(serving, "model_of", lambda url: Model("m", "bundled", 100))
    monkeypatch.setattr(serving, "chosen", lambda *of, **how: Chosen([Asked("code", [1], "a")], 0, 0))
    work = Workload(None, [Configuration("plain")], [Prompt("code", "a")], tokens=8, rounds=1)
    files: list[str] = []
    differing = {"plain-stock"}
    for names, speedups in (
        (("tree", "plain", "plain-stock"), [1.5, 1.2, 1.0]),
        (("tree", "plain"), [1.25, 1.0]),
        (("tree", "chain"), [None, None]),
    ):
        progress: Any = Quiet()
        rows = serving.serve_running(work, {name: name for name in names}, [1.0], tmp_path, progress).rows
        assert [row.get("speedup") for row in rows] == speedups
        assert all(row.get("identical", True) == (row["method"] not in differing) for row in rows)
        assert len(set(files)) == len(files)
        files.clear()


def test_a_server_that_decodes_plainly_gives_the_answers_that_chats_go_on_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, Any]] = []
    rendering = Rendering(served(None))

    def ask(client: Any, model: str, prompt: list[int], tokens: int, drawn: dict[str, Any]) -> Answer:
        asked.append((str(client.base_url), drawn))
        return Answer(rendering.tokenizer.encode("Fine."), 0.1, 0.2, len(prompt))

    monkeypatch.setattr(servers, "ask", ask)
    monkeypatch.setattr(serving, "model_of", lambda url: Model("m", served(None), 500))
    work = Workload(
        None, [Configuration("plain")], [question("a", "one", "two")], 8, 1, samplings=(GREEDY, Sampling(1.0))
    )
    progress: Any = Quiet()
    load = serving.Load(work, "http://plain:1", tmp_path / "prompts.jsonl", tmp_path, progress)
    assert asked == [("http://plain:1/v1/", {"temperature": 0.0})]
    assert load.prompts["counted"] == load.count == 2
    first, second = (json.loads(line)["prompt"] for line in (tmp_path / "prompts.jsonl").read_text().splitlines())
    assert second == f"{first}Fine.<|end|>\n<|user|>\ntwo<|end|>\n<|assistant|>\n"


def test_an_address_without_a_server_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no vLLM server answers at http://127\.0\.0\.1:9"):
        model_of("http://127.0.0.1:9")


def test_addresses_have_names() -> None:
    assert command_line.read_urls(["plain=http://a:8000/v1", "tree=https://b/"]) == {
        "plain": "http://a:8000",
        "tree": "https://b",
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["sweep", "--config", "tree"], "--config is 'tree'"),
        (["sweep", "--prompts", "nowhere.json"], "nowhere.json"),
        (["sweep", "--nodes", "0"], "--nodes is 0"),
        (["sweep", "--target", "x", "--nodes", "8"], "no configuration drafts trees"),
        (["serve", "--request-rate", "0"], "--request-rate is 0"),
        (["serve", "--url", "localhost:8000"], "--url is 'localhost:8000'"),
        (["serve", "--url", "a=http://x", "--eagle", "y"], "--url measures servers that are running"),
    ],
)
def test_bad_options_are_refused_in_one_sentence_before_anything_is_loaded(
    given: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from vllm_specext.bench import offline

    monkeypatch.setattr(offline, "load", lambda *of: pytest.fail("an engine was loaded"))
    monkeypatch.setattr(sys, "argv", ["vllm-specext", "bench", *given, "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert str(ended.value).startswith("error: ")
    assert said in str(ended.value)
    assert "\n" not in str(ended.value)


def test_what_vllm_bench_serve_says_where_it_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)^vllm bench serve ended with status 2\..*--no-such-option"):
        vllm_bench.run(["--no-such-option"], tmp_path / "result.json")

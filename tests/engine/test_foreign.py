"""Drafters with a foreign tokenizer on the real engine: the tokens of plain decoding where drafts are deterministic,
its distribution where they are drawn."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import ROOMY, ROUND, TIGHT, Result
from tests.engine.test_lossless import ASKED, differing, is_noticed
from tests.engine.workload import FOREIGN_BPE, FOREIGN_BYTES, GREEDY

Engines = Callable[..., Result]


def foreign(method: str, drafter: Path, **own: Any) -> dict[str, Any]:
    """Drafts also where that is slower."""
    return {"speculative_config": {"method": method, "model": str(drafter), "adaptive_drafts": False} | own}


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


def accepted(result: Result) -> float:
    return float(result["counters"]["vllm:spec_decode_num_accepted_tokens"])


@pytest.mark.parametrize(
    ("method", "drafter"),
    [("slem", FOREIGN_BPE), pytest.param("slem", FOREIGN_BYTES, marks=pytest.mark.extended), ("tli", FOREIGN_BPE)],
    ids=["slem-bpe", "slem-bytes", "tli"],
)
def test_deterministic_drafts_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, method: str, drafter: Path
) -> None:
    result = engines(foreign(method, drafter))
    assert differing(result, plain) == []
    assert accepted(result) > 60


def test_nor_are_tokens_changed_by_a_short_context_and_a_small_cache(
    engines: Engines, plain: Result, tmp_path: Path
) -> None:
    """Preempted and asynchronous, while the drafter's cache holds one request and some outgrow its context."""
    short = Path(shutil.copytree(FOREIGN_BPE, tmp_path / "short"))
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 256}))
    result = engines(foreign("slem", short) | TIGHT, keep_async=True, sabotage="shrink_drafters_cache")
    assert differing(result, plain) == []
    assert result["counters"]["vllm:num_preemptions"] > 0
    assert accepted(result) > 20


@pytest.mark.extended
def test_compiled_drafters_give_the_tokens_of_compiled_plain_decoding(engines: Engines) -> None:
    compiled = {"enforce_eager": False}
    result = engines(foreign("slem", FOREIGN_BPE) | compiled)
    assert differing(result, engines(compiled)) == []
    assert accepted(result) > 60


def test_believing_every_draft_is_noticed(engines: Engines, plain: Result) -> None:
    assert is_noticed(engines, plain, foreign("slem", FOREIGN_BPE), "accept_every_draft")


DRAWN: dict[str, dict[str, Any]] = {
    "tli": foreign("tli", FOREIGN_BPE, draft_sample_method="probabilistic"),
    "slrs": foreign("slrs", FOREIGN_BYTES),
}
DRAWING = [pytest.param("tli", marks=pytest.mark.extended), "slrs"]
REFUSED = {"min_p", "logit_bias"}


@pytest.mark.parametrize("method", DRAWING)
def test_greedy_requests_have_the_tokens_of_plain_decoding_where_drafts_are_drawn(
    engines: Engines, plain: Result, method: str
) -> None:
    served = [index for index, request in enumerate(ASKED) if not REFUSED & request["sampling"].keys()]
    result = engines(DRAWN[method], rounds=[[ASKED[index] for index in served]])
    same = [{"outputs": [plain["outputs"][index] for index in served]}]
    greedy = {place for place, index in enumerate(served) if ASKED[index]["sampling"]["temperature"] == 0}
    assert len(greedy) > 8
    assert greedy.isdisjoint(differing(result, same[0]))
    assert accepted(result) > 30


LISTING: tuple[dict[str, Any], ...] = (
    {"logprob_token_ids": [198, 11, 220]},
    {"logprobs": 2},
    {"logprob_token_ids": [5], "logprobs": 1},
    {},
)


@pytest.mark.parametrize("method", DRAWING)
def test_logprobs_of_listed_tokens_are_those_of_plain_decoding_where_drafts_are_drawn(
    engines: Engines, method: str
) -> None:
    """In batches with requests that want the likeliest tokens' or none."""
    own = GREEDY | {"max_tokens": 24, "ignore_eos": True}
    asked = [{"ids": one["ids"], "sampling": own | kind} for kind in LISTING for one in ROUND[4:8]]
    result, plain = engines(DRAWN[method], rounds=[asked]), engines({}, rounds=[asked])
    assert differing(result, plain) == []
    for one, other, request in zip(result["outputs"], plain["outputs"], asked, strict=True):
        assert one["logprobs"] == [pytest.approx(row, abs=1e-4) for row in other["logprobs"]]
        listed = set(map(str, request["sampling"].get("logprob_token_ids", ())))
        assert all(listed <= row.keys() for row in one["logprobs"])
        assert len(one["logprobs"]) == ("logprobs" in request["sampling"] or bool(listed)) * 24
    assert accepted(result) > 20


@pytest.mark.parametrize("method", ["slem", *(pytest.param(name, marks=pytest.mark.extended) for name in DRAWN)])
def test_passes_in_graphs_are_those_without(engines: Engines, method: str) -> None:
    """What CUDA graphs of the passes would replay is recorded."""
    drafter = DRAWN[method] if method in DRAWN else foreign(method, FOREIGN_BPE)
    served = [request for request in ASKED if not REFUSED & request["sampling"].keys()][:12]
    result, eager = (engines(drafter, rounds=[served], graphs=graphs) for graphs in ([1, 2, 4, 8], None))
    replayed = set(map(tuple, result["replays"]))
    assert {size for size, _ in replayed} == {1, 2, 4, 8}
    assert any(rows == 8 for _, rows in replayed)
    assert differing(result, eager) == []
    assert accepted(result) == pytest.approx(accepted(eager), rel=0.02)


SAMPLES = 800
SAMPLED = {"temperature": 1.0, "max_tokens": 2, "ignore_eos": True}
PROMPT = ROUND[9]["ids"][60 : 60 + ROOMY["block_size"] + 1]
"""One whole block, which is cached."""
ONE_PROMPT = [{"ids": PROMPT, "sampling": SAMPLED | {"seed": seed}} for seed in range(SAMPLES)]
MANY = {"max_num_seqs": 64, "max_num_batched_tokens": 4096}
LIKELY = 8


def tokens(result: Result) -> Counter[int]:
    """Second ones, which are the first to be verified."""
    return Counter(output["ids"][1] for output in result["outputs"])


def distance(one: Result, plain: Result) -> float:
    """Total variation of the likeliest tokens and the rest; below 0.05 between two samples of one distribution."""
    other = tokens(plain)
    likely = [token for token, _ in other.most_common(LIKELY)]
    shares = [[counts[token] / SAMPLES for token in likely] for counts in (tokens(one), other)]
    ours, theirs = ([*own, 1 - sum(own)] for own in shares)
    return sum(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / 2


@pytest.fixture(scope="module")
def plain_samples(engines: Engines) -> Result:
    return engines(MANY, rounds=[ONE_PROMPT])


def drawn_once(engines: Engines, method: str, **switches: Any) -> Result:
    config = DRAWN[method]["speculative_config"] | {"num_speculative_tokens": 1}
    return engines(MANY | {"speculative_config": config}, rounds=[ONE_PROMPT], **switches)


@pytest.mark.parametrize("method", DRAWING)
def test_drawn_drafts_leave_the_distribution_of_the_tokens_as_it_is(
    engines: Engines, plain_samples: Result, method: str
) -> None:
    result = drawn_once(engines, method)
    assert accepted(result) > SAMPLES / 10
    assert distance(result, plain_samples) < 0.05


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        pytest.param("tli", "mask_target_to_what_is_drafted", marks=pytest.mark.extended),
        ("slrs", "draft_probabilities_of_another_token"),
    ],
)
def test_another_distribution_is_noticed(engines: Engines, plain_samples: Result, method: str, fault: str) -> None:
    assert distance(drawn_once(engines, method, sabotage=fault), plain_samples) > 0.07

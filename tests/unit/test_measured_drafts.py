"""The scheduler drafts as many tokens as its own clock says are fastest."""

import logging
import random
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds

from tests.unit.test_scheduling import configuration, deliver, drafted, request, scheduler
from vllm_specext.engine.scheduler import measured_drafts
from vllm_specext.tree.prompt_costs import PromptCosts

MOST = 8
SWIFT = {"method": "swift", "num_speculative_tokens": MOST, "keep_step_costs": False}


@pytest.fixture(scope="module")
def adapting() -> VllmConfig:
    return configuration(SWIFT)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(measured_drafts.time, "perf_counter", lambda: now[0])
    return now


def decode(engine: Any, clock: list[float], steps: int, level: float, right: int, idle: float = 0.0) -> list[int]:
    """Decode one request after another. A drafted token costs ``level`` of a step, and the first ``right`` ones of a
    draft are accepted. Tokens that every decoding step verified."""
    verified: list[int] = []
    while len(verified) < steps:
        if not engine.requests:
            clock[0] += idle
            engine.add_request(request(f"from step {len(verified)} on"))
        output = engine.schedule()
        (rows,) = output.num_scheduled_tokens.values()
        count = sum(drafted(output).values())
        if rows == 1 + count:
            verified.append(count)
        clock[0] += 1.0 + level * output.num_spec_tokens_to_schedule
        deliver(engine, output, 1 + right)
        names = list(engine.requests)
        drafts = [[7] * output.num_spec_tokens_to_schedule for _ in names]
        engine.update_draft_token_ids(DraftTokenIds(names, drafts))
    return verified


def serve(engine: Any, clock: list[float], steps: int, level: float, right: int) -> list[int]:
    """Decode for twelve requests at a time with short answers, so that nearly every step reads another one's prompt.
    Tokens that every step was told to draft."""
    chooser, told = random.Random(0), []
    alone = 0
    while len(told) < steps:
        while len(engine.requests) < 12:
            name = f"{len(told)} {len(engine.requests)}"
            engine.add_request(request(name, prompt=chooser.randrange(20, 200), max_tokens=chooser.randrange(2, 14)))
        output = engine.schedule()
        asked, rows = output.num_spec_tokens_to_schedule, drafted(output)
        told.append(asked)
        prompts = sum(count for name, count in output.num_scheduled_tokens.items() if count != 1 + rows[name])
        alone += not prompts
        clock[0] += 1.0 + level * asked + 0.003 * prompts
        deliver(engine, output, 1 + right)
        engine.update_draft_token_ids(DraftTokenIds(list(engine.requests), [[7] * asked for _ in engine.requests]))
    assert alone < 0.25 * steps
    return told


def share(verified: list[int], size: int) -> float:
    return sum(each == size for each in verified) / len(verified)


@pytest.mark.parametrize("idle", [0.0, 3600.0], ids=["busy", "idle"])
def test_drafts_that_lose_are_hardly_ever_scheduled(adapting: VllmConfig, clock: list[float], idle: float) -> None:
    """Time without requests is nobody's: a request that comes an hour after the last one makes no size slow."""
    engine = scheduler(adapting)
    verified = decode(engine, clock, 800, level=1.5, right=1, idle=idle)
    assert share(verified, 0) > 0.95


def test_the_best_size_is_found(adapting: VllmConfig, clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    """Three tokens of a draft are right, so that a longer one costs more and brings nothing."""
    engine = scheduler(adapting)
    logging.getLogger("vllm").addHandler(caplog.handler)
    caplog.set_level(logging.INFO, logger="vllm")
    verified = decode(engine, clock, 800, level=0.1, right=3)
    logging.getLogger("vllm").removeHandler(caplog.handler)
    assert share(verified[300:], 3) > 0.8
    said = [record.getMessage() for record in caplog.records if "Drafted tokens" in record.getMessage()]
    assert any(line.startswith("Drafted tokens for 1 to 1 running requests: 3; expected") for line in said)
    # A load that nobody has seen begins with what is known of the next one.
    assert engine.dynamic_sd_lookup[2:] == [engine.dynamic_sd_lookup[1]] * (len(engine.dynamic_sd_lookup) - 2)


@pytest.mark.parametrize(("level", "right", "best"), [(0.1, 3, 3), (1.5, 1, 0)], ids=["pays", "loses"])
def test_steps_with_prompts_tell_what_drafts_cost(
    adapting: VllmConfig, clock: list[float], level: float, right: int, best: int
) -> None:
    assert share(serve(scheduler(adapting), clock, 1200, level, right)[400:], best) > 0.85


@pytest.mark.parametrize(("level", "right", "best"), [(0.1, 3, 3), (1.5, 1, 0)], ids=["pays", "loses"])
def test_where_they_do_not_more_is_lost(
    adapting: VllmConfig, clock: list[float], monkeypatch: pytest.MonkeyPatch, level: float, right: int, best: int
) -> None:
    monkeypatch.setattr(PromptCosts, "note", lambda self, size, requests, prompt, seconds: None if prompt else seconds)
    assert share(serve(scheduler(adapting), clock, 1200, level, right)[400:], best) < 0.75


@pytest.mark.parametrize("base", [Scheduler, AsyncScheduler])
def test_rows_are_those_that_were_drafted_for_while_sizes_change(
    adapting: VllmConfig, clock: list[float], base: type[Scheduler]
) -> None:
    """What a step verifies is what the workers were told to draft in the step before."""
    engine = scheduler(adapting, base)
    engine.add_request(request("only"))
    told, flying = 0, None
    seen = set()
    for _ in range(60):
        output = engine.schedule()
        assert drafted(output) == {"only": min(told, 99)}
        told = output.num_spec_tokens_to_schedule
        seen.add(told)
        clock[0] += 1.0 + 0.1 * told
        if base is Scheduler:
            deliver(engine, output, 1)
            engine.update_draft_token_ids(DraftTokenIds(["only"], [[7] * told]))
        else:
            if flying is not None:
                deliver(engine, flying, 1)
            flying = output
    assert len(seen) > 1


@pytest.mark.parametrize("fixed", [{"num_speculative_tokens_per_batch_size": [[1, 16, 4]]}, {"adaptive_drafts": False}])
def test_a_fixed_schedule_wins(clock: list[float], fixed: dict[str, Any]) -> None:
    engine = scheduler(configuration(SWIFT | fixed))
    lookup = list(engine.dynamic_sd_lookup)
    verified = decode(engine, clock, 300, level=1.5, right=1)
    assert set(verified) <= {0, lookup[1]}
    assert share(verified, lookup[1]) > 0.97
    assert engine.dynamic_sd_lookup == lookup

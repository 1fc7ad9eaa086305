"""The scheduler stops drafting where its own clock says that drafts cost more than they bring."""

import logging
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.v1.outputs import DraftTokenIds

from tests.unit.test_scheduling import configuration, deliver, drafted, request, scheduler
from vllm_specext.engine.scheduler import draft_switch

NODES = 8
SWIFT = {
    "method": "swift",
    "num_speculative_tokens": NODES,
    "num_speculative_tokens_per_batch_size": [[1, 16, NODES]],
}


@pytest.fixture(scope="module")
def switching() -> VllmConfig:
    return configuration(SWIFT)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(draft_switch.time, "perf_counter", lambda: now[0])
    return now


def decode(engine: Any, clock: list[float], steps: int, slowdown: float, idle: float = 0.0) -> list[int]:
    """Decode one request after another, ``slowdown`` times as slow where tokens were drafted; one in two drafts brings
    a token more. Drafted tokens of every decoding step."""
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
        clock[0] += slowdown if count else 1.0
        deliver(engine, output, 1 + (len(verified) % 2 if count else 0))
        names = list(engine.requests)
        drafts = [[7] * output.num_spec_tokens_to_schedule for _ in names]
        engine.update_draft_token_ids(DraftTokenIds(names, drafts))
    return verified


def test_drafts_that_lose_are_no_longer_scheduled(
    switching: VllmConfig, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    engine = scheduler(switching)
    logging.getLogger("vllm").addHandler(caplog.handler)
    caplog.set_level(logging.INFO, logger="vllm")
    verified = decode(engine, clock, 250, slowdown=3.0)
    logging.getLogger("vllm").removeHandler(caplog.handler)
    assert all(verified[1:60])
    assert not any(verified[200:])
    (line,) = [record.getMessage() for record in caplog.records if "Drafting" in record.getMessage()]
    assert line == ("Drafting is off for 1 to 1 running requests: tokens come 0.50 times as fast with it as without.")
    # Other loads decide for themselves.
    assert engine.dynamic_sd_lookup[1] == 0
    assert engine.dynamic_sd_lookup[2:] == [NODES] * (len(engine.dynamic_sd_lookup) - 2)


def test_drafts_that_win_go_on(switching: VllmConfig, clock: list[float]) -> None:
    engine = scheduler(switching)
    verified = decode(engine, clock, 250, slowdown=1.2)
    assert all(verified[200:])


def test_time_without_requests_is_nobodys(switching: VllmConfig, clock: list[float]) -> None:
    """A request that comes an hour after the last one, in the middle of a burst, makes neither way slow."""
    engine = scheduler(switching)
    assert not any(decode(engine, clock, 250, slowdown=3.0, idle=3600.0)[200:])


def test_it_can_be_left_out(clock: list[float]) -> None:
    engine = scheduler(configuration(SWIFT | {"swift_switch_off": False}))
    assert all(decode(engine, clock, 250, slowdown=3.0)[200:])

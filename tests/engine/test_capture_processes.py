"""Engines in processes of their own, which vLLM splits further, and in Ray's actors: what crosses the borders between
them is enough, and what they write is what transformers computes."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.asking import ask
from tests.engine.capturing import TARGET_NAME
from tests.engine.test_capture import CLOSE, ENGINE, FIRST, GIVEN, SAMPLING, furthest, rows_in, target
from vllm_specext.errors import ConfigurationError
from vllm_specext.preparation.feature_folder import FeatureFolder
from vllm_specext.preparation.processes import LocalEngine
from vllm_specext.preparation.ray_engines import ray_engines
from vllm_specext.preparation.spread import RemoteEngine, SpreadAnswerer
from vllm_specext.training.data.answers import Turn
from vllm_specext.training.data.row import make_row

__all__ = ["target"]

pytestmark = pytest.mark.extended


@pytest.fixture
def local() -> Iterator[RemoteEngine]:
    engine = LocalEngine(ENGINE, SAMPLING)
    engine.loaded.result()
    yield engine
    engine.close()


@pytest.fixture
def ray_actor() -> Iterator[RemoteEngine]:
    with ray_engines("local", ENGINE, SAMPLING, gpus_each=1) as engines:
        (engine,) = engines  # one on every machine that has no GPU
        yield engine


NO_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


@NO_RAY
def test_a_cluster_that_is_not_there_is_refused() -> None:
    with (
        pytest.raises(ConfigurationError, match=r"^--ray is 'auto', where no cluster answers"),
        ray_engines("auto", ENGINE, SAMPLING, gpus_each=1),
    ):
        pass


@pytest.mark.parametrize("place", ["local", pytest.param("ray_actor", marks=NO_RAY)])
def test_an_engine_elsewhere_answers_and_writes(
    place: str, tmp_path: Path, target: Any, request: pytest.FixtureRequest
) -> None:
    folder = FeatureFolder(SpreadAnswerer([request.getfixturevalue(place)]), tmp_path, TARGET_NAME, "data")
    turns = [Turn(f"{one['name']}-0", 0, tuple(one["ids"]), 0, 8) for one in FIRST[:4]]
    rows = []
    for turn, answer in zip(turns, ask(folder, turns), strict=True):
        assert answer is not None
        prompt, ids = len(turn.prompt_token_ids), (*turn.prompt_token_ids, *answer.token_ids)
        rows.append(make_row(ids, [place >= prompt for place in range(len(ids))], turn.name))
    rows += [make_row(ids, [True] * len(ids), f"given-{number}-0") for number, ids in enumerate(GIVEN[:2])]
    folder.keep(rows, [one["name"] for one in FIRST[:4]])
    assert folder.missing == []
    written = rows_in(tmp_path)
    expected = [row.token_ids.tolist() for row in rows]
    assert sorted(row.token_ids.tolist() for row in written) == sorted(expected)
    assert furthest(target, written) < CLOSE


def test_a_target_that_cannot_be_captured_is_a_sentence() -> None:
    engine = LocalEngine(ENGINE | {"aux_layers": [2, 6, 99]}, SAMPLING)
    with pytest.raises(ConfigurationError, match=r"^speculative-config key 'aux_layers' is \[2, 6, 99\].*\.$"):
        engine.loaded.result()
    engine.close()

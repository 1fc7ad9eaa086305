"""How a server's engine is asked for what a client wants, without an engine."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.exceptions import VLLMValidationError

from vllm_specext.engine.client_trees import brought_by
from vllm_specext.engine.clients.verifier import TAKE, EngineVerifier
from vllm_specext.errors import ConfigurationError
from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.protocol import Sampling
from vllm_specext.remote.rows import INT8, RowFormat

FORM = RowFormat(1, 2, INT8)
TREE = Drafted.made(np.array([5, 6, 7]), np.array([0, 0, 1]))


class Engine:
    """Says ``outputs``, one after the other, to whoever asks."""

    def __init__(self, *outputs: list[int], refuses: bool = False) -> None:
        self.outputs, self.refuses = outputs, refuses
        self.said = self.closed = 0
        self.prompt: Any = None
        self.params: Any = None
        self.taken: list[Any] = []

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[Any]:
        self.prompt, self.params = prompt, params
        if self.refuses:
            raise VLLMValidationError("too long.", parameter="prompt")
        try:
            for tokens in self.outputs:
                self.said += 1
                yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens)])
        finally:
            self.closed += 1

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[bytes]:
        self.taken.append((method, *args))
        return [b"rows"]


def verify(engine: Engine, tree: Drafted = TREE, extra: int = 0, user: str | None = None) -> Any:
    verifier = EngineVerifier(engine)
    asked = verifier if user is None else verifier.for_user(user)
    sampling = Sampling(3, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.2)
    return asyncio.run(asked.verify([1, 2, 3], tree, sampling, FORM, 1, extra))


@pytest.mark.parametrize(
    ("outputs", "extra", "tokens"),
    [
        (([5], [7, 9], [4]), 0, [5, 7, 9]),
        (([6], [4]), 0, [6]),
        (([8], [4], [2], [1]), 2, [8, 4, 2]),
    ],
)
def test_what_is_not_wanted_is_not_waited_for(outputs: tuple[list[int], ...], extra: int, tokens: list[int]) -> None:
    engine = Engine(*outputs)
    outcome = verify(engine, extra=extra)
    assert (outcome.tokens, outcome.rows) == (tokens, b"rows")
    assert engine.said == len(outputs) - 1  # the last one is never asked for
    assert engine.closed == 1


def test_the_engine_draws_as_the_client_wants_and_gets_the_tree() -> None:
    engine = Engine([6])
    verify(engine, extra=4)
    params = engine.params
    drawn = (params.seed, params.temperature, params.top_p, params.top_k, params.min_p, params.repetition_penalty)
    assert drawn == (3, 0.5, 0.9, 7, 0.1, 1.2)
    assert params.max_tokens == 1 + TREE.levels + 4
    assert params.ignore_eos
    brought = brought_by(params)
    assert brought is not None
    assert (brought.tree.ids.tolist(), brought.first_row, brought.kind) == ([5, 6, 7], 1, INT8)
    assert engine.taken == [(TAKE, brought.ticket)]
    assert engine.prompt["prompt_token_ids"] == [1, 2, 3]


def test_users_do_not_find_each_others_prefixes() -> None:
    salts = []
    for user in ("one", "two"):
        engine = Engine([6])
        verify(engine, user=user)
        salts.append(engine.prompt["cache_salt"])
    assert salts == ["one", "two"]


def test_what_the_engine_refuses_is_told_in_its_sentence() -> None:
    with pytest.raises(ConfigurationError, match="too long"):
        verify(Engine(refuses=True))

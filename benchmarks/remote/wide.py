"""Rows as wide as a Llama 3 8B's drafter has them, for a small one: each head stands several times."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.protocol import Sampling
from vllm_specext.remote.rows import FLOAT16, INT8, RowFormat
from vllm_specext.remote.verifier import Outcome

VERIFY = 1.25
TIMES = 4
"""1024 values instead of 256."""


@dataclass
class WideVerifier:
    """Asks an engine in this process. The time that this takes is not looked at: the virtual clock's is."""

    llm: Any
    own: RowFormat
    """The engine's, ``FLOAT16``."""
    token_seconds: float
    """Of the server's time; a verification takes ``VERIFY`` times as long."""
    sleep: Callable[[float], Any]

    def for_user(self, key: str) -> "WideVerifier":
        return self

    async def verify(
        self, text: list[int], tree: Drafted, sampling: Sampling, form: RowFormat, first_row: int, extra: int
    ) -> Outcome:
        from vllm.inputs import tokens_input

        from vllm_specext.engine.clients.verifier import TAKE, Answer, params_for

        ticket, params = params_for(tree, sampling, self.own, first_row, extra)
        engine = self.llm.llm_engine
        engine.add_request(ticket, tokens_input(text), params)
        answer = Answer(tree, extra)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if answer.is_whole(output.outputs[0].token_ids) and not output.finished:
                    engine.abort_request([output.request_id], internal=False)
        (rows,) = self.llm.collective_rpc(TAKE, args=(ticket,))
        keys, values = self.own.unpack(rows)
        wide = form.pack(keys.repeat(1, TIMES, 1), values.repeat(1, TIMES, 1)).numpy().tobytes()
        seconds = self.token_seconds * (VERIFY + extra)
        await self.sleep(seconds)
        return Outcome(answer.tokens, wide, 1000 * seconds)


def own_heads(drafter: Any, heads: int) -> Any:
    """``drafter`` takes the first heads of a wide row alone."""
    take = drafter.take

    def narrow(first: int, keys: Tensor, values: Tensor) -> int:
        taken: int = take(first, keys[:, :heads], values[:, :heads])
        return taken

    drafter.take = narrow
    return drafter


def wire(own: RowFormat) -> RowFormat:
    return RowFormat(own.heads * TIMES, own.head_size, INT8)


def exact(heads: int, head_size: int) -> RowFormat:
    return RowFormat(heads, head_size, FLOAT16)

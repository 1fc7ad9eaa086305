"""A client's tree as a request of the engine.

The prompt is the whole text, most of which the prefix cache has. The first output is the token that ends the prompt's
step; where the tree holds it, the second is what was verified of the tree under it. Unless more is wanted, the request
has done its work then.
Nothing is held for a session between two of its messages.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind

from vllm_specext.engine.client_trees import Brought
from vllm_specext.errors import ConfigurationError
from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.protocol import Sampling
from vllm_specext.remote.rows import RowFormat
from vllm_specext.remote.verifier import Outcome

TAKE = "take_client_rows"
"""A method of ``kept_rows.TakesClientRows``."""


def params_for(
    tree: Drafted, sampling: Sampling, form: RowFormat, first_row: int, extra: int = 0
) -> tuple[str, SamplingParams]:
    """The ticket for the rows, and how the engine is asked. Tokens that end an answer are the session's to look for."""
    ticket = secrets.token_hex(8)
    params = SamplingParams(
        seed=sampling.seed,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        max_tokens=1 + tree.levels + extra,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=Brought(tree, first_row, form.kind, ticket).arguments(),
    )
    return ticket, params


class Answer:
    """What comes of a request, output by output."""

    def __init__(self, tree: Drafted, extra: int) -> None:
        self._tree, self._extra = tree, extra
        self.tokens: list[int] = []
        self._verified = 0

    def is_whole(self, said: Sequence[int]) -> bool:
        """Take the tokens of another output; whether all are there that are wanted."""
        verifies_next = not self.tokens and len(self._tree.under(said[0]).ids) > 0
        self.tokens += said
        if not self._verified and not verifies_next:
            self._verified = len(self.tokens)
        return 0 < self._verified <= len(self.tokens) - self._extra


class EngineVerifier:
    """Verifies with an ``AsyncLLM``."""

    def __init__(self, engine: Any, salt: str | None = None) -> None:
        """``salt``: users with another one do not find their prefixes in the cache."""
        self._engine, self._salt = engine, salt

    def for_user(self, key: str) -> "EngineVerifier":
        """The same for one user, whose prefixes nobody else finds in the cache."""
        return EngineVerifier(self._engine, key)

    async def verify(
        self, text: list[int], tree: Drafted, sampling: Sampling, form: RowFormat, first_row: int, extra: int
    ) -> Outcome:
        ticket, params = params_for(tree, sampling, form, first_row, extra)
        prompt = tokens_input(text, cache_salt=self._salt)
        begun = time.monotonic()
        answer = Answer(tree, extra)
        outputs = self._engine.generate(prompt, params, f"client-{ticket}")
        try:
            async for output in outputs:
                if answer.is_whole(output.outputs[0].token_ids):
                    break
        except VLLMValidationError as error:
            raise ConfigurationError(str(error)) from None
        finally:
            await outputs.aclose()
        (rows,) = await self._engine.collective_rpc(TAKE, args=(ticket,))
        return Outcome(answer.tokens, rows, 1000 * (time.monotonic() - begun))

"""What a request brings of a client's drafts, in ``SamplingParams.extra_args``."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from vllm_specext.engine.requests import CLIENT_TREE
from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.protocol import MalformedError
from vllm_specext.remote.rows import FLOAT16, INT8

KEYS = ("ids", "parents", "first_row", "kind", "ticket")
MAX_TICKET = 64


@dataclass(frozen=True)
class Brought:
    """A tree under the last token of the prompt, and the rows that are wanted."""

    tree: Drafted
    first_row: int
    """The first token of the text whose row is wanted."""
    kind: str
    """Of the rows (``remote/rows.py``)."""
    ticket: str
    """By which they are taken."""

    def arguments(self) -> dict[str, Any]:
        """For ``extra_args``."""
        ids, parents = self.tree.ids.tolist(), self.tree.parents.tolist()
        values = (ids, parents, self.first_row, self.kind, self.ticket)
        return {CLIENT_TREE: dict(zip(KEYS, values, strict=True))}


def brought_by(params: SamplingParams | None) -> Brought | None:
    """What a request with ``params`` brings, which was checked; ``None`` for one of no client that drafts."""
    given = None if params is None else (params.extra_args or {}).get(CLIENT_TREE)
    if given is None:
        return None
    ids, parents = (np.array(given[name], dtype=np.int64) for name in ("ids", "parents"))
    return Brought(Drafted.made(ids, parents), given["first_row"], given["kind"], given["ticket"])


def reads_client_trees(config: Any) -> bool:
    """Whether the method of a ``SpecExtConfig`` verifies what clients have drafted."""
    return bool(config.options.takes_clients_trees)


def check_client_tree(params: SamplingParams, vllm_config: Any) -> None:
    """Raise ``VLLMValidationError`` for what is no tree, or is larger than the configuration's."""
    given = (params.extra_args or {}).get(CLIENT_TREE)
    if given is None:
        return
    vocabulary, context = vllm_config.model_config.get_vocab_size(), vllm_config.model_config.max_model_len
    options = vllm_config.speculative_config.options
    if not isinstance(given, dict) or given.keys() != set(KEYS):
        raise _refusal(f"must have {', '.join(KEYS)} and nothing else.")
    most = options.num_speculative_tokens
    if not _are_numbers(given["ids"], vocabulary, most):
        raise _refusal(f"'ids' must be at most {most} token ids from 0 to {vocabulary - 1}.")
    if not _are_numbers(given["parents"], most, most):
        raise _refusal(f"'parents' must be at most {most} numbers of nodes, the root's being 0.")
    if not _are_numbers([given["first_row"]], context, 1):
        raise _refusal("'first_row' must be a token of the text, the first being 0.")
    if given["kind"] not in (INT8, FLOAT16):
        raise _refusal(f"'kind' must be {INT8!r} or {FLOAT16!r}.")
    if not isinstance(given["ticket"], str) or not 1 <= len(given["ticket"]) <= MAX_TICKET:
        raise _refusal(f"'ticket' must be a string of 1 to {MAX_TICKET} characters.")
    ids, parents = (np.array(given[name], dtype=np.int64) for name in ("ids", "parents"))
    try:
        Drafted.checked(ids, parents, most, options.tree.depth if options.tree is not None else most)
    except MalformedError as error:
        raise _refusal(str(error)) from None


def _are_numbers(given: Any, below: int, most: int) -> bool:
    is_short = isinstance(given, list) and len(given) <= most
    return is_short and all(type(number) is int and 0 <= number < below for number in given)


def _refusal(sentence: str) -> VLLMValidationError:
    return VLLMValidationError(f"{CLIENT_TREE!r}: {sentence}", parameter=CLIENT_TREE)

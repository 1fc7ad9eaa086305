"""What a request may be drafted: a tree, a chain, or nothing.

The scheduler and the workers decide by the same rule from the request, so they need not tell each other.

Rows of a tree are right wherever the sampler looks at one row at a time: temperature, top-k, top-p, min-p, logit bias,
allowed tokens, minimum length (by position), seeds, logprobs. Penalties, bad words and budgets for thinking read the
text before a row, for which they get the path to its node (``engine/verification/path_text.py``); grammars follow the
same paths in the scheduler (``engine/scheduler/grammar_walk.py``). Custom logits processors take all rows before it for
that text, which holds for a chain only, and nothing says for which requests they do.
"""

from enum import IntEnum
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import vllm.envs as envs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from vllm_specext.declaration import Reads

SWITCH = "speculation"
"""Key of ``SamplingParams.extra_args`` (``vllm_xargs`` of the OpenAI API), false for a request without drafts."""

PREDICTION = "prediction_token_ids"
"""Key of ``SamplingParams.extra_args``: the target's tokens that the answer is expected to have."""

CLIENT_TREE = "client_tree"
"""Key of ``SamplingParams.extra_args``: a tree that a client has drafted (``engine/client_trees.py``)."""

MAX_ALLOWED_TOKENS = 1024
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKENS = 128
"""Most entries that the sampler's buffers hold, as ``VLLM_MAX_BAD_WORDS_TOTAL_TOKENS`` is for bad words."""


class TokenIds(list[int]):
    """Token ids that logs show the number of: they are a user's text, and many."""

    def __repr__(self) -> str:
        return f"<{len(self)} token ids>"


class Drafting(IntEnum):
    OFF = 0
    CHAIN = 1
    TREE = 2


def drafting_of(params: SamplingParams | None, custom_processors: bool) -> Drafting:
    """The most that may be drafted for a request with ``params``. ``custom_processors``: whether there are any."""
    if params is None or not (params.extra_args or {}).get(SWITCH, True):
        return Drafting.OFF
    if params.ignore_eos and params.structured_outputs is not None and params.structured_outputs._backend == "guidance":
        # vLLM's grammar refuses tokens that come in one step with the one that ends it, and goes on without.
        return Drafting.OFF
    return Drafting.CHAIN if custom_processors else Drafting.TREE


def prediction_of(params: SamplingParams | None) -> list[int] | None:
    """The prediction of a request with ``params``; ``None`` where it has none."""
    return None if params is None else (params.extra_args or {}).get(PREDICTION)


def shorten_in_logs(params: SamplingParams | None) -> None:
    """Have logs show how long the prediction or the tree of a request with ``params`` is, and not what it says."""
    if params is None or not params.extra_args:
        return
    if (ids := params.extra_args.get(PREDICTION)) is not None:
        params.extra_args[PREDICTION] = TokenIds(ids)
    if (tree := params.extra_args.get(CLIENT_TREE)) is not None:
        params.extra_args[CLIENT_TREE] = tree | {"ids": TokenIds(tree["ids"])}


def drafting_for(request: Any, reads: Reads, custom_processors: bool, needs_prediction: bool = False) -> Drafting:
    """The most that a method that ``reads`` this may draft for ``request``, vLLM's ``Request`` or ``NewRequestData``.

    A method that reads the text drafts nothing after a prompt of embeddings, which has no text; one that
    ``needs_prediction`` drafts nothing without.
    """
    if reads is Reads.TEXT and request.prompt_embeds is not None:
        return Drafting.OFF
    if needs_prediction and not prediction_of(request.sampling_params):
        return Drafting.OFF
    return drafting_of(request.sampling_params, custom_processors)


def has_custom_processors(model_config: Any) -> bool:
    """Whether logits processors that vLLM does not know run on every request: those of --logits-processors and
    installed ones."""
    return bool(model_config.logits_processors) or _are_processors_installed()


@cache
def _are_processors_installed() -> bool:
    """Looked up once, because that takes ten milliseconds."""
    return bool(entry_points(group="vllm.logits_processors"))


def validate(params: SamplingParams) -> None:
    """Raise ``VLLMValidationError`` for what cannot be served with our methods.

    Replaces vLLM's check, which refuses min-p and logit bias because its rejection sampler does not apply them; the
    sampler that we verify with applies both to every row.
    """
    switch = (params.extra_args or {}).get(SWITCH, True)
    if switch not in (0, 1):
        raise VLLMValidationError(f"{SWITCH!r} must be true or false.", parameter=SWITCH, value=switch)


def check_room(params: SamplingParams) -> None:
    """Raise ``VLLMValidationError`` for what vLLM's V2 sampler has no room for.

    The sampler raises too, but in the worker, which ends the engine and with it everybody's requests. ``params`` are
    those that go to the worker, with the model's own stop tokens and the tokens of bad words.
    """
    stop_tokens = params.all_stop_token_ids if params.min_tokens > 0 else ()
    for parameter, tokens, what, most in (
        ("allowed_token_ids", params.allowed_token_ids or (), "allowed tokens", MAX_ALLOWED_TOKENS),
        ("logit_bias", params.logit_bias or (), "tokens with a logit bias", MAX_LOGIT_BIAS),
        ("stop_token_ids", stop_tokens, "stop tokens with min_tokens, the model's own included", MAX_STOP_TOKENS),
        (
            "bad_words",
            [token for word in params.bad_words_token_ids or () for token in word],
            "tokens in bad words, each with and without a space before it",
            envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS,
        ),
    ):
        if len(tokens) > most:
            raise VLLMValidationError(
                f"{parameter!r} makes {len(tokens)} {what}, but at most {most} are supported.",
                parameter=parameter,
                value=len(tokens),
            )

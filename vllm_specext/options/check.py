"""From the keys of ``--speculative-config`` to options, with one sentence where a key or a size is wrong."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from vllm_specext.errors import ConfigurationError
from vllm_specext.options.base import MethodOptions
from vllm_specext.tree.budget import pool_size


def parse(options: type[MethodOptions], raw: Mapping[str, Any]) -> MethodOptions:
    """Check the keys ``raw``, and return them as options. A ``ConfigurationError`` names the first bad key and what is
    allowed."""
    try:
        return options(**raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        method = raw.get("method")
        if first["type"] == "extra_forbidden":
            allowed = ", ".join(options.model_fields)
            raise ConfigurationError(
                f"speculative-config key {key!r} is unknown for method {method!r}; allowed are {allowed}."
            ) from None
        if first["type"] == "missing":
            raise ConfigurationError(
                f"speculative-config key {key!r} is missing for method {method!r}: "
                f"{options.model_fields[key].description}."
            ) from None
        expected = first["msg"][0].lower() + first["msg"][1:]
        raise ConfigurationError(f"speculative-config key {key!r} is {raw.get(key)!r}, but {expected}.") from None


MOST_BESIDE_STATES = 127
"""Drafted tokens that recurrent layers verify. With the token before them they are rows of one program
(``kernels/recurrent``), which would need more shared memory than GPUs have for twice as many. In float32 cards with
99 KiB of it have no room for more than half of these."""


def check_sizes(
    options: MethodOptions, max_model_len: int, step_tokens: int | None, has_recurrent_layers: bool = False
) -> None:
    """Raise ``ConfigurationError``, with the number that fits, when the draft has no room.

    A draft and the token before it are computed in one step, which has at most ``step_tokens`` tokens when that is
    limited. At least one token has to follow them in a sequence of ``max_model_len`` tokens.
    ``has_recurrent_layers``: the target, which verifies fewer tokens then.
    """
    tokens = options.num_speculative_tokens
    key = f"speculative-config key 'num_speculative_tokens' is {tokens}"
    tree, schedule = options.tree, options.num_speculative_tokens_per_batch_size or []
    if tree is not None and tokens > (pool := pool_size(tree.depth, tree.top_k)):
        raise ConfigurationError(
            f"{key}, but a tree with tree_depth {tree.depth} and tree_top_k {tree.top_k} has at most {pool} nodes: "
            f"at most {pool} are allowed, or a larger tree_depth or tree_top_k."
        )
    if options.looks_up and options.takes_clients_trees:
        raise ConfigurationError(
            "speculative-config key 'use_prompt' is true, but with client_drafts it must be false."
        )
    if options.looks_up and options.predicted is None:
        raise ConfigurationError(
            "speculative-config key 'use_prompt' is true, but prediction_tokens is 0; it must be the number of tokens "
            f"that are looked up at once, 1 to num_speculative_tokens, {tokens}."
        )
    if options.predicted is not None and options.predicted.tokens > tokens:
        raise ConfigurationError(
            f"speculative-config key 'prediction_tokens' is {options.predicted.tokens}, but at most "
            f"num_speculative_tokens, {tokens}, can be drafted."
        )
    if step_tokens is not None and 1 + tokens > step_tokens:
        raise ConfigurationError(
            f"{key}, but a step computes at most {step_tokens} tokens (--max-num-batched-tokens) and a draft needs one "
            f"more than its length: at most {step_tokens - 1} are allowed."
        )
    if has_recurrent_layers and tokens > MOST_BESIDE_STATES:
        raise ConfigurationError(
            f"{key}, but a target with recurrent layers verifies at most {MOST_BESIDE_STATES} drafted tokens."
        )
    if 1 + tokens >= max_model_len:
        raise ConfigurationError(
            f"{key}, but a sequence has at most {max_model_len} tokens (--max-model-len): "
            f"at most {max_model_len - 2} are allowed."
        )
    if too_many := [entry for entry in schedule if entry[2] > tokens]:
        raise ConfigurationError(
            f"speculative-config key 'num_speculative_tokens_per_batch_size' has {too_many[0]}, "
            f"but at most num_speculative_tokens, {tokens}, can be drafted."
        )

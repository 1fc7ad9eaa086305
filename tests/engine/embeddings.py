"""Prompts of embeddings, in whole or in part, that no text has: each row lies between those of two tokens."""

from functools import cache
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from tests.engine.workload import TARGET

ALL, SOME, OWN = "all", "some", "own"
"""What a request's prompt gives as embeddings: all of it, some stretches, or the rows of its very tokens."""

STRETCH = 5


@cache
def table() -> Tensor:
    with safe_open(TARGET / "model.safetensors", "pt") as file:
        rows: Tensor = file.get_tensor("model.embed_tokens.weight").float()
    return rows


def prompt(request: dict[str, Any]) -> dict[str, Any]:
    """As ``vllm.LLM`` takes it. Where some are embeddings, the tensor's other rows and the ids of the stretches are not
    to be read: here they are no numbers, and no tokens."""
    ids, embeds = request["ids"], request.get("embeds")
    if embeds is None:
        return {"prompt_token_ids": ids}
    tokens = torch.tensor(ids)
    if embeds == OWN:
        return {"prompt_embeds": table()[tokens]}
    between = 0.7 * table()[tokens] + 0.3 * table()[(7 * tokens + 1) % len(table())]
    if embeds == ALL:
        return {"prompt_embeds": between}
    is_token = torch.arange(len(ids)) // STRETCH % 2 == 0
    between[is_token] = torch.nan
    masked = torch.where(is_token, tokens, len(table())).tolist()
    return {"prompt_embeds": between, "prompt_token_ids": masked, "prompt_is_token_ids": is_token.tolist()}

"""The requests that every engine under test gets: mixed lengths and sampling, shared prefixes, all with fixed seeds."""

import json
import random
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

DEMO = Path(__file__).parents[2] / "vllm_specext" / "demo"
TARGET = DEMO / "models" / "target"
GRIFFIN = DEMO / "models" / "griffin"
DRAFTS = 4

GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLING: tuple[dict[str, Any], ...] = (
    GREEDY,
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.9},
    {"temperature": 0.9, "presence_penalty": 0.6, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
    GREEDY | {"logprobs": 3},
    {"temperature": 0.8, "top_p": 0.95, "logprobs": 1},
    GREEDY | {"min_tokens": 20, "stop_token_ids": [198]},
    {"temperature": 0.5, "bad_words": [" the", "self"]},
)


def requests(count: int) -> list[dict[str, Any]]:
    """``{"ids", "sampling"}``; every third shares its first 64 tokens with the others of its kind."""
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    texts = [prompt["text"] for prompt in json.loads((DEMO / "prompts.json").read_text())]
    rows = [tokenizer.encode(text).ids for text in texts]
    shared = [token for row in rows for token in row][:64]
    chooser = random.Random(0)
    made = []
    for index in range(count):
        ids = rows[index % len(rows)][: chooser.choice([1, 7, 33, 64, 200])]
        if index % 3 == 0:
            ids = shared + ids
        sampling = SAMPLING[index % len(SAMPLING)] | {
            "seed": 100 + index,
            "max_tokens": chooser.choice([5, 24, 48, 64]),
        }
        made.append({"ids": ids, "sampling": {"ignore_eos": "stop_token_ids" not in sampling} | sampling})
    return made

"""The requests that every engine under test gets: mixed lengths and sampling, shared prefixes, all with fixed seeds."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

DEMO = Path(__file__).parents[2] / "vllm_specext" / "demo"
TARGET = DEMO / "models" / "target"
GRIFFIN = DEMO / "models" / "griffin"
EAGLE3 = DEMO / "models" / "eagle3"
DFLASH = DEMO / "models" / "dflash"
MOA = DEMO / "models" / "moa"
FOREIGN_BPE = DEMO / "models" / "foreign_bpe"
FOREIGN_BYTES = DEMO / "models" / "foreign_bytes"
DRAFT_VOCABULARY = Path(__file__).parents[1] / "data" / "draft_vocabulary.json"
"""The 300 most frequent of the target's 2048 tokens in the bundled models' training text, as ``vllm-specext vocab``
writes them."""
DRAFTS = 4

GREEDY: dict[str, Any] = {"temperature": 0.0}
PLAIN_WORDS = {"regex": r"[a-z]{3,8}( [a-z]{3,8}){6}"}
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"type": "integer", "maximum": 999}},
    "required": ["name", "size"],
}
SAMPLING: tuple[dict[str, Any], ...] = (
    GREEDY,
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.9},
    {"temperature": 0.9, "presence_penalty": 0.6, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
    GREEDY | {"logprobs": 3},
    {"temperature": 0.8, "top_p": 0.95, "logprobs": 1},
    GREEDY | {"min_tokens": 20, "stop_token_ids": [198]},
    {"temperature": 0.5, "bad_words": [" the", "self"]},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.9, "logit_bias": {"198": 2.5, "11": -100.0}},
    GREEDY | {"allowed_token_ids": list(range(0, 2048, 3))},
    {"temperature": 0.8, "structured_outputs": PLAIN_WORDS},
    GREEDY | {"prompt_logprobs": 2},
    GREEDY | {"structured_outputs": {"json": RECORD}},
    {"temperature": 0.6, "logprob_token_ids": [11, 198, 220]},
    GREEDY | {"stop": ["return", "\n\n"]},
    {"temperature": 0.7, "extra_args": {"speculation": False}},
    {"temperature": 1.2, "top_k": 8, "min_tokens": 12},
)
"""Every kind of request, sampled and greedy."""


def requests(count: int) -> list[dict[str, Any]]:
    """``{"ids", "sampling"}``; every fourth shares its first 64 tokens with the others of its kind."""
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    texts = [prompt["text"] for prompt in json.loads((DEMO / "prompts.json").read_text())]
    rows = [tokenizer.encode(text).ids for text in texts]
    shared = [token for row in rows for token in row][:64]
    chooser = random.Random(0)
    made = []
    for index in range(count):
        ids = rows[index % len(rows)][: chooser.choice([1, 7, 33, 64, 200])]
        if index % 4 == 0:
            ids = shared + ids
        sampling = SAMPLING[index % len(SAMPLING)] | {
            "seed": 100 + index,
            "max_tokens": chooser.choice([5, 16, 32, 64]),
        }
        if "min_tokens" in sampling:
            sampling["min_tokens"] = min(sampling["min_tokens"], sampling["max_tokens"])
        ends = {"stop_token_ids", "structured_outputs", "stop"} & sampling.keys()
        made.append({"ids": ids, "sampling": {"ignore_eos": not ends} | sampling})
    return made


def copy_tokenizer(folder: Path, source: Path = TARGET) -> None:
    """And all else of ``source`` but its weights, for one that is made of it in ``folder``."""
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, folder)

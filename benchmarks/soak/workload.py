"""What the soak asks for: requests whose answers are known, and messages that a server has to refuse.

A request is the body of ``/v1/completions`` without the model's name. Its sampling is greedy or has a seed, so that
plain decoding gives one answer to it. Lengths, parameters and whether it may be drafted at all are mixed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from vllm_specext.measure.bundled import TARGET, bundled_prompts

Request = dict[str, Any]

MODEL = "bundled"
CONTEXT = 1024
"""``--max-model-len`` of the demonstration's servers."""
PROMPT_TOKENS = (6, 30, 90, 240, 480)
ANSWER_TOKENS = (8, 24, 64, 128)
GREEDY: Request = {"temperature": 0}
WORDS = {"regex": "[a-z]{3,8}( [a-z]{3,8}){6}"}
KINDS: tuple[Request, ...] = (
    GREEDY,
    {"temperature": 1.0},
    GREEDY | {"logprobs": 3},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.9},
    GREEDY | {"vllm_xargs": {"speculation": False}},
    {"temperature": 0.9, "presence_penalty": 0.6, "frequency_penalty": 0.4},
    GREEDY | {"stop": ["return", "\n\n"]},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.5, "bad_words": [" the", "self"]},
    {"temperature": 0.9, "logit_bias": {"198": 2.5, "11": -100}},
    GREEDY | {"min_tokens": 8, "stop_token_ids": [198]},
    {"temperature": 0.8, "structured_outputs": WORDS},
)


NOT_WITH_DRAWN = ("min_p", "logit_bias")
"""Sampling parameters that vLLM refuses where drafts are drawn at random."""


def requests(count: int, kinds: Sequence[Request] = KINDS) -> list[Request]:
    """``count`` requests, the same every time; some of the prompts begin alike, for the prefix cache."""
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    prompts = [prompt["text"] for prompt in bundled_prompts()]
    text = tokenizer.encode("\n\n".join(prompts)).ids
    chooser = random.Random(0)
    made = []
    for index in range(count):
        kind = kinds[index % len(kinds)]
        first = 0 if index % 5 == 0 else chooser.randrange(len(text) - max(PROMPT_TOKENS))
        prompt = text[first : first + chooser.choice(PROMPT_TOKENS)]
        ends = kind.keys() & {"stop", "stop_token_ids", "structured_outputs"}
        own = {"prompt": prompt, "max_tokens": chooser.choice(ANSWER_TOKENS), "seed": 100 + index}
        made.append({"model": MODEL, "ignore_eos": not ends, "return_token_ids": True} | own | kind)
    return made


@dataclass(frozen=True)
class Fault:
    """A message that must be answered with ``status``; ``body`` is sent as it is where it is ``bytes``."""

    name: str
    body: Request | bytes
    status: int = 400


def _faulty(name: str, status: int = 400, **own: Any) -> Fault:
    return Fault(name, {"model": MODEL, "prompt": "def main():", "max_tokens": 8} | own, status)


FAULTS: tuple[Fault, ...] = (
    _faulty("prompt too long", prompt=[11] * (CONTEXT + 1)),
    Fault("malformed JSON", b'{"model": "bundled", "prompt": "def main('),
    Fault("not JSON", b"\x00\xff def main():"),
    _faulty("negative temperature", temperature=-1),
    _faulty("top_p above 1", top_p=1.5),
    _faulty("text for a number", max_tokens="many"),
    _faulty("no answers", n=0),
    _faulty("token behind the vocabulary", prompt=[10**6]),
    _faulty("wrong switch", vllm_xargs={"speculation": "off"}),
    _faulty("too many allowed tokens", allowed_token_ids=list(range(1025))),
    _faulty("invalid grammar", structured_outputs={"regex": "[a-z"}),
    _faulty("unknown model", 404, model="unknown"),
)


@dataclass(frozen=True)
class Workload:
    requests: list[Request]
    compared: list[bool]
    """Of which of them the tokens have to be those of plain decoding."""
    faults: tuple[Fault, ...]


def workload(count: int, *, drawn: bool) -> Workload:
    """``count`` different requests, and the messages that a server has to refuse. Where drafts are ``drawn`` at random,
    a seed gives other tokens than in plain decoding."""
    refused = [kind for kind in KINDS if drawn and any(name in kind for name in NOT_WITH_DRAWN)]
    faults = [_faulty(f"{', '.join(kind)} with drawn drafts", **kind) for kind in refused]
    asked = requests(count, [kind for kind in KINDS if kind not in refused])
    return Workload(asked, [not drawn or request["temperature"] == 0 for request in asked], (*FAULTS, *faults))

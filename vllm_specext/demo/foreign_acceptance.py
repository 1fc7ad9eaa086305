"""How well a drafter with a vocabulary of its own foretells the target's tokens, measured without a server.

Drafter and target meet in bytes: a target token is accepted when the greedy draft's bytes go on with that token's. A
server turns drafts into target tokens before it verifies them, and loses what the two tokenizers cut differently at a
draft's end, so that these figures are what it can reach at most.
"""

import math

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from vllm_specext.demo.foreign_tokens import encode, own_text, token_bytes
from vllm_specext.training.acceptance import Acceptance, summarise


@torch.no_grad()
def bits_per_byte(model: LlamaForCausalLM, ids: Tensor, lengths: Tensor) -> float:
    """The bits per byte of ``ids`` ``[N, T]``. Tokens after the first of each row have ``lengths[id]`` bytes; a marker
    has none."""
    nats, count = 0.0, 0
    for row in ids.split(1):
        logits = model(row[:, :-1]).logits.float()
        nats += float(torch.nn.functional.cross_entropy(logits[0], row[0, 1:], reduction="sum"))
        count += int(lengths[row[0, 1:]].sum())
    return nats / count / math.log(2)


def byte_lengths(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """``[tokens]``: bytes of each; a marker has none."""
    lengths = torch.tensor([len(token) for token in token_bytes(tokenizer)])
    lengths[tokenizer.all_special_ids] = 0
    return lengths


@torch.no_grad()
def measure_foreign_acceptance(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    target: PreTrainedTokenizerFast,
    rows: Tensor,
    prompt_length: int,
    chain: int,
    drafted: int,
) -> Acceptance:
    """Acceptance of greedy drafts of ``drafted`` tokens, up to ``chain`` target tokens each, on the target's ``rows``
    ``[N, T]``, after ``prompt_length`` of its tokens and the next."""
    ours, theirs = token_bytes(tokenizer), token_bytes(target)
    accepted = []
    for row in rows.tolist():
        known = range(prompt_length + 1, len(row) - chain + 1)
        contexts = encode(tokenizer, [own_text(row[:end], target) for end in known])
        drafts = [b"".join(ours[token] for token in draft) for draft in greedy_drafts(model, contexts, drafted)]
        truths = [[theirs[token] for token in row[end : end + chain]] for end in known]
        accepted.append([matched(draft, truth) for draft, truth in zip(drafts, truths, strict=True)])
    return summarise(torch.tensor(accepted), 1, chain)


def matched(draft: bytes, tokens: list[bytes]) -> int:
    """The number of the target's ``tokens`` that the draft starts with."""
    count = 0
    while count < len(tokens) and draft.startswith(b"".join(tokens[: count + 1])):
        count += 1
    return count


def greedy_drafts(model: LlamaForCausalLM, contexts: list[list[int]], drafted: int) -> list[list[int]]:
    """``drafted`` tokens after each context; after an end of text or turn there may be padding."""
    width = max(map(len, contexts))
    ids = torch.full((len(contexts), width), model.config.pad_token_id)
    mask = torch.zeros_like(ids)
    for index, context in enumerate(contexts):
        ids[index, width - len(context) :] = torch.tensor(context)
        mask[index, width - len(context) :] = 1
    made = model.generate(ids, attention_mask=mask, max_new_tokens=drafted, do_sample=False)
    return made[:, width:].tolist()

"""Fine-tuning against loops: the model continues text greedily, and what repeats itself is made less likely.

Unlikelihood training on the model's own continuations: a token that completes a 4-gram already generated is pushed down
(``-log(1 - p)``), beside the ordinary loss on text.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from vllm_specext.measure.loops import is_loop

NGRAM = 4
PREFIX = 48
ROWS = 32


def repeats(ids: Tensor, start: int) -> Tensor:
    """``ids`` ``[B, L]`` -> bool ``[B, L]``: the token completes a 4-gram that stands already, after ``start``."""
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for row, tokens in enumerate(ids.tolist()):
        seen = set()
        for end in range(start + NGRAM, len(tokens) + 1):
            gram = tuple(tokens[end - NGRAM : end])
            mask[row, end - 1] = gram in seen
            seen.add(gram)
    return mask


@torch.no_grad()
def continue_greedily(model: LlamaForCausalLM, prefixes: Tensor, length: int) -> Tensor:
    """``[B, P]`` -> ``[B, P + length]``."""
    return model.generate(
        prefixes,
        attention_mask=torch.ones_like(prefixes),
        max_new_tokens=length,
        min_new_tokens=length,
        do_sample=False,
    )


def prefixes(path: Path, rows: int, seed: int) -> Tensor:
    ids = np.load(path, mmap_mode="r")
    starts = np.random.default_rng(seed).integers(0, len(ids) - PREFIX, rows)
    return torch.from_numpy(np.stack([ids[s : s + PREFIX] for s in starts]).astype(np.int64))


def loop_share(model: LlamaForCausalLM, directory: Path) -> dict[str, float]:
    """Share of 32 held-out continuations of 96 tokens of each kind that loop."""
    share = {}
    for kind in ("code", "prose"):
        rows = continue_greedily(model, prefixes(directory / f"{kind}.npy", ROWS, 0), 96)[:, PREFIX:].tolist()
        share[kind] = round(sum(map(is_loop, rows)) / len(rows), 3)
    return share


def repeat_loss(model: LlamaForCausalLM, prefixes: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The unlikelihood of repeats in the model's own continuations of ``prefixes`` by ``length`` tokens, and the share
    of tokens that are repeats."""
    rows = continue_greedily(model, prefixes, length)
    mask = repeats(rows, PREFIX)[:, PREFIX:]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(rows[:, :-1]).logits[:, PREFIX - 1 :]
    taken = F.log_softmax(logits.float(), dim=-1).gather(-1, rows[:, PREFIX:, None]).squeeze(-1)
    unlikely = -torch.log1p(-taken.exp().clamp(max=0.999))
    return (unlikely * mask).sum() / mask.sum().clamp(min=1), mask.float().mean()

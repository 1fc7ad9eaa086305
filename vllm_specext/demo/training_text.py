"""The text that the bundled drafters are trained and measured on: the corpus, and the target's own greedy continuations
of corpus prefixes, which are what a greedy server will verify drafts against."""

import argparse
import hashlib
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from vllm_specext.demo.tokens import id_dtype
from vllm_specext.measure.loops import before_loop, is_loop
from vllm_specext.training.acceptance import greedy_continuations

PROMPT = 96
LENGTH = 288
"""Prompt and output of the demonstration's longest requests; a drafter is poor at distances it has not seen."""
CHAIN = 4
HELD_OUT_ROWS = 48
HELD_OUT_LENGTH = 192


def arguments(description: str) -> argparse.ArgumentParser:
    """The arguments of every trainer of a drafter on this text."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of the encoded corpus (train_target writes it)"
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=3500, help="rows of corpus text")
    parser.add_argument("--continuations", type=int, default=1700, help="rows of the target's own text")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    add_restart(parser)
    return parser


def add_restart(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--restart", action="store_true", help="begin anew, rather than go on with what an interrupted run left in WORK"
    )


def state_file(work: Path, name: str, restart: bool) -> Path:
    """The file from which the training ``name`` goes on. It is removed if the training shall ``restart``."""
    path = work / f"{name}.state.pt"
    if restart:
        path.unlink(missing_ok=True)
    return path


def windows(path: Path, count: int, length: int, seed: int) -> Tensor:
    """``[count, length]`` int64 from random places of an encoded corpus."""
    ids = np.load(path, mmap_mode="r")
    starts = np.random.default_rng(seed).integers(0, len(ids) - length, count)
    return torch.from_numpy(np.stack([ids[s : s + length] for s in starts]).astype(np.int64))


def training_rows(target: LlamaForCausalLM, work: Path, texts: int, continuations: int) -> list[Tensor]:
    """``texts`` windows of the corpus, and `own_rows`."""
    return [*windows(work / "train.npy", texts, LENGTH, seed=2), *own_rows(target, work, continuations, seed=1)]


def own_rows(target: LlamaForCausalLM, work: Path, count: int, seed: int) -> list[Tensor]:
    """The target's ``count`` continuations of the beginnings of windows of the corpus, up to a loop."""
    own = _kept_continuations(target, windows(work / "train.npy", count, PROMPT, seed), LENGTH - PROMPT, work)
    kept = [PROMPT + before_loop(row[PROMPT:].tolist()) for row in own]
    print(f"{sum(kept) - PROMPT * len(kept)} tokens of {own[:, PROMPT:].numel()} are not loops", flush=True)
    return [row[:n] for row, n in zip(own, kept, strict=True)]


def held_out_rows(target: LlamaForCausalLM, work: Path, count: int = HELD_OUT_ROWS) -> dict[str, Tensor]:
    """``count`` rows of held-out text of each kind, and the target's own continuations of their first tokens that do
    not loop."""
    found: dict[str, Tensor] = {}
    for kind in ("code", "prose"):
        text = windows(work / f"{kind}.npy", count, HELD_OUT_LENGTH, seed=3)
        own = _kept_continuations(target, text[:, :PROMPT], HELD_OUT_LENGTH - PROMPT, work)
        straight = [not is_loop(row[PROMPT:].tolist()) for row in own]
        found |= {f"{kind} text": text, f"{kind} greedy": own[torch.tensor(straight)]}
    return {name: rows for name, rows in found.items() if len(rows)}


def _kept_continuations(target: LlamaForCausalLM, prompts: Tensor, length: int, work: Path) -> Tensor:
    """`greedy_continuations`, which take minutes, kept in ``work`` for the next training on the same text."""
    name = hashlib.sha256(prompts.numpy().tobytes() + bytes(str(length), "ascii"))
    for parameter in target.parameters():
        name.update(parameter.detach().numpy().tobytes())
    path = work / f"continuations-{name.hexdigest()[:16]}.npy"
    if not path.exists():
        ids = greedy_continuations(target, prompts, length).numpy()
        np.save(path, ids.astype(id_dtype(target.config.vocab_size)))
    return torch.from_numpy(np.load(path).astype(np.int64))

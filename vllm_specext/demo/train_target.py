"""Train the bundled target: a Llama of 7.6 M parameters, on one CPU core in about an hour and a half.

After a byte-level BPE come four stages, each measured on held-out text: next-token training at a constant rate (Muon
for the matrices, AdamW for the rest); the same with the rate falling to zero; and two short rounds of fine-tuning
against loops (``unlikelihood.py``), without which greedy output of a model this small repeats itself and flatters every
drafter.

    python -m vllm_specext.demo.train_target --work WORK --out vllm_specext/demo/models/target
"""

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from vllm_specext.demo.tokens import MAX_MODEL_LEN, VOCAB_SIZE, encode_corpus, train_tokenizer
from vllm_specext.demo.training_text import add_restart, state_file
from vllm_specext.demo.unlikelihood import ROWS, loop_share, prefixes, repeat_loss
from vllm_specext.measure.corpus import END_OF_TEXT, END_OF_TURN
from vllm_specext.training.loop import fit
from vllm_specext.training.optimization import linear, make_muon
from vllm_specext.training.run import Run
from vllm_specext.training.stages import Stage, Steps
from vllm_specext.training.step import Progress, Share, Sums, TrainingStep

SEQUENCE = 512


class Part(NamedTuple):
    """A stage of the target's training."""

    steps: int
    batch: int
    schedule: Callable[[Progress], float]
    rate: float = 1.0
    """The full learning rates, as a multiple of the base ones."""
    continued: int = 0
    """Tokens of the continuations in which repeats are made unlikely; loops move back once the early ones are gone."""
    continuation_seed: int = 0
    """The seed of the text that is continued in the first step; later steps count up from it."""


def falling(progress: Progress) -> float:
    return 1 - progress.done


PARTS = (
    Part(steps=100, batch=32, schedule=linear(20, 20, floor=1.0)),
    Part(steps=240, batch=16, schedule=linear(0, 240)),
    Part(steps=80, batch=8, schedule=falling, rate=0.15, continued=64, continuation_seed=1000),
    Part(steps=60, batch=8, schedule=falling, rate=0.15, continued=96, continuation_seed=2000),
)


def target_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    end_of_text, end_of_turn = tokenizer.convert_tokens_to_ids([END_OF_TEXT, END_OF_TURN])
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_MODEL_LEN,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=[end_of_text, end_of_turn],
        pad_token_id=end_of_text,
    )


class Windows:
    """Random windows of ``length + 1`` tokens, the same for the same seed."""

    def __init__(self, path: Path, seed: int, length: int = SEQUENCE) -> None:
        self.ids = np.load(path, mmap_mode="r")
        self.length = length
        self.random = np.random.default_rng(seed)

    def batch(self, size: int) -> Tensor:
        """``[size, length + 1]`` int64."""
        starts = self.random.integers(0, len(self.ids) - self.length - 1, size)
        return torch.from_numpy(np.stack([self.ids[s : s + self.length + 1] for s in starts]).astype(np.int64))

    def state_dict(self) -> dict[str, Any]:
        return {"random": json.dumps(self.random.bit_generator.state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.random.bit_generator.state = json.loads(state["random"])


def optimizers(model: nn.Module, rate: float = 1.0) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        make_muon(matrices, rate=0.02 * rate, weight_decay=0.01),
        torch.optim.AdamW(others, lr=4e-3 * rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def next_token_loss(model: nn.Module, ids: Tensor, bfloat16: bool = True) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
        logits = model(ids[:, :-1]).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: nn.Module, directory: Path) -> dict[str, float]:
    """Nats per token on 16 fixed windows of each kind."""
    return {
        kind: round(float(next_token_loss(model, Windows(directory / f"{kind}.npy", 0).batch(16))), 3)
        for kind in ("code", "prose")
    }


class TargetBatch(NamedTuple):
    text: Tensor
    """``[B, SEQUENCE + 1]``"""
    prefixes: Tensor | None
    """``[ROWS, PREFIX]``: text to continue, where loops are unlearnt."""


class TargetBatches:
    """Random windows of the training text, others in every stage."""

    def __init__(self, directory: Path) -> None:
        self.train = directory / "train.npy"
        self.stage, self.windows = 0, Windows(self.train, 0)

    def next(self, progress: Progress, share: Share) -> TargetBatch:
        if progress.stage != self.stage:
            self.stage, self.windows = progress.stage, Windows(self.train, progress.stage)
        part = PARTS[progress.stage - 1]
        seed = part.continuation_seed + progress.step - 1
        begun = share.of(prefixes(self.train, ROWS, seed)) if part.continued else None
        return TargetBatch(share.of(self.windows.batch(part.batch)), begun)

    def state_dict(self) -> dict[str, Any]:
        return {"stage": self.stage, "windows": self.windows.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stage = state["stage"]
        self.windows.load_state_dict(state["windows"])


class TargetStep(TrainingStep[TargetBatch]):
    """Next-token prediction; where loops are unlearnt, the unlikelihood of repeats beside it."""

    def __init__(self, model: LlamaForCausalLM, directory: Path) -> None:
        super().__init__()
        self.model = model
        self.directory = directory
        self.compiled_loss = torch.compile(next_token_loss)

    def forward(self, batch: TargetBatch, progress: Progress) -> Sums:
        if batch.prefixes is None:
            loss = self.compiled_loss(self.model, batch.text)
            return Sums.of_means(loss, {"train": loss})
        repeated, share = repeat_loss(self.model, batch.prefixes, PARTS[progress.stage - 1].continued)
        loss = next_token_loss(self.model, batch.text) + repeated
        return Sums.of_means(loss, {"train": loss, "repeats": share})

    def measure(self, progress: Progress) -> dict[str, Any]:
        measured: dict[str, Any] = held_out_loss(self.model, self.directory)
        at_end = progress.step == PARTS[progress.stage - 1].steps
        return {**measured, "loops": loop_share(self.model, self.directory)} if at_end else measured


def stages() -> list[Stage]:
    clip = partial(nn.utils.clip_grad_norm_, max_norm=1.0)
    return [Stage(Steps(part.steps, 100), partial(optimizers, rate=part.rate), part.schedule, clip) for part in PARTS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the encoded corpus and checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained model")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    add_restart(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    state = state_file(args.work, "target", args.restart)
    if not state.exists():
        encode_corpus(train_tokenizer(args.out), args.work)
        print((args.work / "sizes.json").read_text(), flush=True)
    model = LlamaForCausalLM(target_config(PreTrainedTokenizerFast.from_pretrained(args.out)))
    log = fit(TargetStep(model, args.work), TargetBatches(args.work), stages(), Run(state))
    model.to(torch.float16).save_pretrained(args.out)
    (args.work / "log.json").write_text(json.dumps(log, indent=1))


if __name__ == "__main__":
    main()

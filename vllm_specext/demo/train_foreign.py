"""Train a bundled drafter that does not share the target's vocabulary, on one CPU core in about an hour.

In the first half the text is the corpus; in the second, three quarters are corpus prefixes with the target's own greedy
continuations, which are what a greedy server will verify drafts against, and windows are twice as long. The learning
rate falls to zero with the time. Measured are bits per byte of held-out text, and acceptance on the target's own
continuations of held-out prefixes that do not loop.

    python -m vllm_specext.demo.train_foreign --kind bpe --work WORK --target vllm_specext/demo/models/target \\
        --out vllm_specext/demo/models/foreign_bpe
"""

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from vllm_specext.demo.foreign_acceptance import bits_per_byte, byte_lengths, measure_foreign_acceptance
from vllm_specext.demo.foreign_tokens import (
    CONTEXTS,
    END_OF_TEXT,
    END_OF_TURN,
    VOCAB_SIZES,
    DrafterKind,
    encode_texts,
    write_tokenizer,
)
from vllm_specext.demo.train_target import Windows, next_token_loss, optimizers
from vllm_specext.demo.training_text import CHAIN, PROMPT, add_restart, held_out_rows, own_rows, state_file
from vllm_specext.training.loop import fit
from vllm_specext.training.run import Run, write_record
from vllm_specext.training.stages import ProcessorTime, Stage
from vllm_specext.training.step import Progress, Share, Sums, TrainingStep

FIRST_BATCH, FIRST_LENGTH = 16, 512
SECOND_OWN, SECOND_TEXT, SECOND_LENGTH = 6, 2, 1024
"""Windows of a batch of the second half: the target's own text, and the corpus."""
RATE = 1.5
"""The full learning rates, as a multiple of the target's base ones."""
WARMUP_STEPS = 20
CONTINUATIONS, SEEDS = 1700, (1, 5)
"""The rows of the first seed are the other drafters' too."""
DRAFTED: dict[DrafterKind, int] = {"bpe": 10, "bytes": 24}
"""Tokens of a measured draft, enough for nearly all chains of ``CHAIN`` target tokens."""
ENTRIES = 20
"""Entries of the log."""


def drafter_config(kind: DrafterKind, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    end_of_text, end_of_turn = tokenizer.convert_tokens_to_ids([END_OF_TEXT, END_OF_TURN])
    return LlamaConfig(
        vocab_size=VOCAB_SIZES[kind],
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXTS[kind],
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=[end_of_text, end_of_turn],
        pad_token_id=end_of_text,
    )


class Mixture:
    """Batches of the corpus in the first half of the training, mostly of the target's own text in the second."""

    def __init__(self, texts: Path) -> None:
        self.first = Windows(texts / "train.npy", 1, FIRST_LENGTH)
        self.second = Windows(texts / "train.npy", 2, SECOND_LENGTH)
        self.own = Windows(texts / "own.npy", 3, SECOND_LENGTH)
        self.tokens = 0
        """Predicted so far."""

    def next(self, progress: Progress, share: Share) -> Tensor:
        if progress.done < 0.5:
            ids = self.first.batch(FIRST_BATCH)
        else:
            ids = torch.cat([self.own.batch(SECOND_OWN), self.second.batch(SECOND_TEXT)])
        self.tokens += ids[:, 1:].numel()
        return share.of(ids)

    def state_dict(self) -> dict[str, Any]:
        windows = {name: getattr(self, name).state_dict() for name in ("first", "second", "own")}
        return {**windows, "tokens": self.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("first", "second", "own"):
            getattr(self, name).load_state_dict(state[name])
        self.tokens = state["tokens"]


class ForeignStep(TrainingStep[Tensor]):
    """Next-token prediction."""

    def __init__(self, model: LlamaForCausalLM, data: Mixture, texts: Path, lengths: Tensor) -> None:
        super().__init__()
        self.model = model
        self.data, self.texts, self.lengths = data, texts, lengths
        # Where the CPU has no instructions for it, bfloat16 takes three times as long as float32.
        self.in_bfloat16 = torch.cpu._is_avx512_bf16_supported()

    def forward(self, batch: Tensor, progress: Progress) -> Sums:
        loss = next_token_loss(self.model, batch, self.in_bfloat16)
        return Sums.of_means(loss, {"train": loss})

    def measure(self, progress: Progress) -> dict[str, Any]:
        return {"tokens": self.data.tokens, **held_out_bits(self.model, self.texts, self.lengths, windows=8)}


def held_out_bits(model: LlamaForCausalLM, texts: Path, lengths: Tensor, windows: int) -> dict[str, float]:
    """Bits per byte of code, prose, and held-out prefixes with the target's continuations, on ``windows`` of each."""
    return {
        name: round(bits_per_byte(model, Windows(texts / f"{name}.npy", 0, SECOND_LENGTH).batch(windows), lengths), 3)
        for name in ("code", "prose", "held_out")
    }


def train(
    model: LlamaForCausalLM, texts: Path, lengths: Tensor, minutes: float, state: Path | None = None
) -> list[dict[str, Any]]:
    """Train ``model`` in place for so many minutes of this process's time, and return the log."""
    stage = Stage(
        ProcessorTime(60 * minutes, ENTRIES),
        optimizers,
        lambda progress: RATE * min(progress.step / WARMUP_STEPS, 1 - progress.done),
        partial(nn.utils.clip_grad_norm_, max_norm=1.0),
    )
    data = Mixture(texts)
    return fit(ForeignStep(model, data, texts, lengths), data, [stage], Run(state, {"minutes": minutes}))


def evaluate(
    kind: DrafterKind,
    out: Path,
    target: PreTrainedTokenizerFast,
    texts: Path,
    held_out: dict[str, Tensor],
) -> tuple[dict[str, float], dict[str, Any]]:
    """Bits per byte and acceptance of the model in ``out``."""
    model = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out)
    figures = {
        name: {
            "rows": len(rows),
            **asdict(measure_foreign_acceptance(model, tokenizer, target, rows, PROMPT, CHAIN, DRAFTED[kind])),
        }
        for name, rows in held_out.items()
    }
    return held_out_bits(model, texts, byte_lengths(tokenizer), windows=64), figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("bpe", "bytes"), required=True)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of the encoded corpus (train_target writes it)"
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=35, help="of one core's time, for the training alone")
    add_restart(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    target = LlamaForCausalLM.from_pretrained(args.target).float().eval().requires_grad_(False)
    own = [row for seed in SEEDS for row in own_rows(target, args.work, CONTINUATIONS, seed)]
    held_out = {name: rows for name, rows in held_out_rows(target, args.work).items() if name.endswith("greedy")}
    target_tokenizer = PreTrainedTokenizerFast.from_pretrained(args.target)
    tokenizer = write_tokenizer(args.kind, args.out)
    texts = args.work / f"foreign_{args.kind}"
    texts.mkdir(exist_ok=True)
    encode_texts(tokenizer, target_tokenizer, args.work, own, [r for rows in held_out.values() for r in rows], texts)

    model = LlamaForCausalLM(drafter_config(args.kind, tokenizer))
    state = state_file(args.work, f"foreign_{args.kind}", args.restart)
    log = train(model, texts, byte_lengths(tokenizer), args.minutes, state)
    model.to(torch.float16).save_pretrained(args.out)
    bits, acceptance = evaluate(args.kind, args.out, target_tokenizer, texts, held_out)
    print(json.dumps(bits), json.dumps(acceptance, indent=1), flush=True)
    recipe = {"minutes": args.minutes, "steps": log[-1]["step"], "tokens": log[-1]["tokens"]}
    write_record(args.out, {"recipe": recipe, "log": log, "bits_per_byte": bits})
    (args.out / "acceptance.json").write_text(json.dumps(acceptance, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Train the bundled target: a Llama of 7.6 M parameters, on one CPU core in about an hour and a half.

Four stages, each measured on held-out text: a byte-level BPE; next-token training at a constant rate (Muon for the
matrices, AdamW for the rest); the same with the rate falling to zero; and a short fine-tuning against loops
(``unlikelihood.py``), without which greedy output of a model this small repeats itself and flatters every drafter.

    python -m vllm_specext.demo.train_target --work WORK --out vllm_specext/demo/models/target
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from vllm_specext.demo.corpus import END_OF_TEXT, END_OF_TURN
from vllm_specext.demo.tokens import MAX_MODEL_LEN, VOCAB_SIZE, encode_corpus, train_tokenizer
from vllm_specext.demo.unlikelihood import loop_share, unlearn_loops

SEQUENCE = 512
WARMUP_STEPS, CONSTANT_STEPS, DECAY_STEPS = 20, 100, 240
CONSTANT_BATCH, DECAY_BATCH, UNLIKELIHOOD_BATCH = 32, 16, 8
UNLIKELIHOOD_RATE = 0.15
"""Of the base learning rates."""
UNLIKELIHOOD_ROUNDS = ((80, 64), (60, 96))
"""Steps, and tokens of the continuations: loops move back once the early ones are gone."""


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


def optimizers(model: nn.Module, rate: float = 1.0) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=0.02 * rate, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=4e-3 * rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def next_token_loss(model: nn.Module, ids: Tensor, bfloat16: bool = True) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
        logits = model(ids[:, :-1]).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def text_loss(model: nn.Module, data: Windows) -> Tensor:
    return next_token_loss(model, data.batch(UNLIKELIHOOD_BATCH))


@torch.no_grad()
def held_out_loss(model: nn.Module, directory: Path) -> dict[str, float]:
    """Nats per token on 16 fixed windows of each kind."""
    return {
        kind: round(float(next_token_loss(model, Windows(directory / f"{kind}.npy", 0).batch(16))), 3)
        for kind in ("code", "prose")
    }


def pretrain(
    model: LlamaForCausalLM, directory: Path, steps: int, batch: int, rate: Callable[[int], float], seed: int, name: str
) -> list[dict]:
    """``steps`` batches at ``rate(step)`` times the base learning rates; a checkpoint and a log row every 100 steps."""
    data = Windows(directory / "train.npy", seed)
    optims = optimizers(model)
    base = [[g["lr"] for g in o.param_groups] for o in optims]
    compiled_loss = torch.compile(next_token_loss)
    log = []
    bar = tqdm(range(steps), desc=name, mininterval=10)
    for step in bar:
        for optim, lrs in zip(optims, base, strict=True):
            for group, lr in zip(optim.param_groups, lrs, strict=True):
                group["lr"] = lr * rate(step)
        loss = compiled_loss(model, data.batch(batch))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim in optims:
            optim.step()
            optim.zero_grad()
        bar.set_postfix(loss=f"{loss.item():.3f}")
        if step % 100 == 99 or step == steps - 1:
            log.append(
                {"stage": name, "step": step + 1, "train": round(loss.item(), 3), **held_out_loss(model, directory)}
            )
            print(json.dumps(log[-1]), flush=True)
            model.save_pretrained(directory / name)
    return log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the encoded corpus and checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained model")
    parser.add_argument(
        "--resume", choices=("decay", "unlikelihood"), help="continue from the checkpoint before this stage"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    log: list[dict] = []
    if args.resume is None:
        started = time.time()
        encode_corpus(train_tokenizer(args.out), args.work)
        print((args.work / "sizes.json").read_text(), f"{time.time() - started:.0f} s", flush=True)
        model = LlamaForCausalLM(target_config(PreTrainedTokenizerFast.from_pretrained(args.out)))
        warm_up = lambda step: min(1.0, (step + 1) / WARMUP_STEPS)  # noqa: E731
        log += pretrain(model, args.work, CONSTANT_STEPS, CONSTANT_BATCH, warm_up, 1, "constant")
    if args.resume != "unlikelihood":
        model = LlamaForCausalLM.from_pretrained(args.work / "constant", dtype=torch.float32)
        fall = lambda step: (DECAY_STEPS - step) / DECAY_STEPS  # noqa: E731
        log += pretrain(model, args.work, DECAY_STEPS, DECAY_BATCH, fall, 2, "decay")
    model = LlamaForCausalLM.from_pretrained(args.work / "decay", dtype=torch.float32)
    log.append({"stage": "before unlikelihood", "loops": loop_share(model, args.work)})
    for number, (steps, length) in enumerate(UNLIKELIHOOD_ROUNDS):
        text = partial(text_loss, model, Windows(args.work / "train.npy", 3 + number))
        unlearn_loops(model, optimizers(model, UNLIKELIHOOD_RATE), args.work, steps, length, number, text)
        log.append({"stage": f"unlikelihood {number + 1}", "loops": loop_share(model, args.work)})
        log[-1] |= held_out_loss(model, args.work)
        print(json.dumps(log[-1]), flush=True)
    model.to(torch.float16).save_pretrained(args.out)
    (args.work / "log.json").write_text(json.dumps(log, indent=1))


if __name__ == "__main__":
    main()

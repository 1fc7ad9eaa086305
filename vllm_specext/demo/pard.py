"""A PARD drafter for the bundled target.

It begins with a third of the target's layers, which stands for the small member of a family, and learns to draft all
positions at once. Its embedding, which is the output layer too, stays the target's.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from vllm_specext.demo.at_once import MASKS, drafted, seen, train
from vllm_specext.demo.dflash import MASK
from vllm_specext.demo.draft_batches import Batch
from vllm_specext.measure.bundled import TARGET
from vllm_specext.training.run import write_record

KEPT = (0, 1, 10, 11)
"""Layers of the target that the drafter begins with."""


class Pard(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drafter = LlamaForCausalLM.from_pretrained(TARGET).float()
        self.drafter.model.layers = nn.ModuleList(self.drafter.model.layers[layer] for layer in KEPT)
        self.drafter.config.num_hidden_layers = len(KEPT)
        self.drafter.get_input_embeddings().requires_grad_(False)

    def forward(self, batch: Batch, target: LlamaForCausalLM) -> Tensor:
        text = batch.token_ids.shape[1]
        place = torch.arange(text).expand(len(batch.anchors), -1)
        masks = (batch.anchors[..., None] + 1 + torch.arange(MASKS)).flatten(1)
        ids = torch.cat((batch.token_ids, torch.full_like(masks, MASK)), dim=1)
        positions = torch.cat((place, masks), dim=1)
        made = self.drafter.model(
            ids, attention_mask=seen(batch.anchors, text), position_ids=positions, use_cache=False
        ).last_hidden_state
        logits: Tensor = self.drafter.lm_head(drafted(made, batch.anchors, text))
        return logits


def make(rows: Sequence[Tensor], out: Path, steps: int) -> None:
    """Write a drafter to ``out``, in the layout of AMD's, with its losses beside it."""
    torch.manual_seed(0)
    target = LlamaForCausalLM.from_pretrained(TARGET).float().eval().requires_grad_(False)
    model = Pard()
    record = train(model, target, (), rows, steps)
    model.drafter.to(torch.float16).save_pretrained(out)
    PreTrainedTokenizerFast.from_pretrained(TARGET).save_pretrained(out)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(json.dumps(config | {"pard_token": MASK}, indent=2) + "\n", encoding="utf-8")
    write_record(out, record)

"""Train a P-EAGLE drafter for the bundled target: none is bundled, and ``benchmarks/p_eagle_trees.py`` needs one.

It begins with the weights of the bundled drafter for EAGLE-3, and learns what rows with mask tokens read in the place
of the target's states, and to draft from them. In every row of text drafts begin at random places; each position of a
draft learns the target's distribution of its token, given the text up to there. Later positions weigh less. P-EAGLE's
paper samples positions by depth instead (arXiv 2602.01469); rows are short here, so that all fit.

    python -m vllm_specext.demo.make_rows --work WORK
    python -m vllm_specext.demo.train_p_eagle --work WORK --out WORK/p_eagle
"""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from vllm_specext.demo.dflash import MASK
from vllm_specext.demo.draft_batches import Batch, DraftBatches
from vllm_specext.demo.make_rows import FILE
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.methods.checkpoints import SAFETENSORS
from vllm_specext.training.eagle3.checkpoint import configuration, read_shape, read_tensors
from vllm_specext.training.eagle3.model import Eagle3Drafter
from vllm_specext.training.loop import fit
from vllm_specext.training.optimization import linear, make_optimizers
from vllm_specext.training.run import Run, write_record
from vllm_specext.training.stages import Stage, Steps
from vllm_specext.training.step import Progress, Sums, TrainingStep

LEVELS = 8
"""Positions that are drafted at once, as many as released drafters have been trained for at least."""
MASKS = LEVELS - 1
STEPS, BATCH, DRAFTS, RATE, WARMUP, DECAY = 800, 8, 32, 4e-3, 20, 3.0
"""The loss of the ``j``-th position weighs ``exp(-(j - 1) / DECAY)``."""


class PEagle(nn.Module):
    def __init__(self, drafter: Eagle3Drafter) -> None:
        super().__init__()
        self.drafter = drafter
        self.mask_hidden = nn.Parameter(0.1 * torch.randn(1, drafter.fc.in_features))

    def forward(self, embedding: nn.Module, batch: Batch) -> Tensor:
        """The head's inputs ``[B, A, LEVELS, d]`` for the positions of the drafts."""
        size, drafts = batch.anchors.shape
        text = batch.token_ids.shape[1] - 1
        place = torch.arange(text).expand(size, -1)
        masks = (batch.anchors[..., None] + torch.arange(MASKS)).flatten(1)
        ids = torch.cat((batch.token_ids[:, 1:], torch.full_like(masks, MASK)), dim=1)
        features = self.drafter.fc(batch.states[:, :text])
        not_known = self.drafter.fc(self.mask_hidden).expand(size, masks.shape[1], -1)
        features = torch.cat((features, not_known), dim=1)
        positions = torch.cat((place, masks), dim=1)
        seen = self._seen(batch.anchors, text, drafts)
        layer = self.drafter.layer
        attended, _ = layer.self_attn(layer.fuse(features, embedding(ids)), positions, seen, None)
        made = self.drafter.norm(layer.finish(features + attended))
        first = made[:, :text].gather(1, (batch.anchors - 1)[..., None].expand(-1, -1, made.shape[-1]))
        return torch.cat((first[:, :, None], made[:, text:].view(size, drafts, MASKS, -1)), dim=2)

    def _seen(self, anchors: Tensor, text: int, drafts: int) -> Tensor:
        """What rows see, ``[B, 1, rows, rows]``: of the text those before them, and the mask tokens of their draft."""
        size, count = len(anchors), drafts * MASKS
        last = torch.cat((torch.arange(text).expand(size, -1), (anchors - 1).repeat_interleave(MASKS, dim=1)), dim=1)
        of_text = torch.arange(text) <= last[..., None]
        draft, row = torch.arange(count) // MASKS, torch.arange(count)
        of_draft = (draft[:, None] == draft) & (row <= row[:, None])
        of_draft = torch.cat((torch.zeros(text, count, dtype=torch.bool), of_draft))
        return torch.cat((of_text, of_draft.expand(size, -1, -1)), dim=2)[:, None]


class Step(TrainingStep[Batch]):
    def __init__(self, model: PEagle, target: LlamaForCausalLM) -> None:
        super().__init__()
        self.model: PEagle = model
        self.target = target
        self.weights = torch.exp(-torch.arange(LEVELS) / DECAY)

    def forward(self, batch: Batch, progress: Progress) -> Sums:
        logits = self.target.lm_head(self.model(self.target.get_input_embeddings(), batch))
        # A token's distribution comes from the state before it.
        before = (batch.anchors[..., None] + torch.arange(LEVELS)).flatten(1)
        states = batch.last_states.gather(1, before[..., None].expand(-1, -1, batch.last_states.shape[-1]))
        wanted = self.target.lm_head(states).softmax(dim=-1).view_as(logits)
        losses = (logits.logsumexp(dim=-1) - (wanted * logits).sum(dim=-1)).mean(dim=(0, 1))
        return Sums.of_means((losses * self.weights).sum(), {"token": losses})


def train(rows: Sequence[Tensor], out: Path, steps: int = STEPS) -> None:
    """Write a drafter to ``out``, in the layout of those that were released first, with its losses beside it."""
    torch.manual_seed(0)
    target = LlamaForCausalLM.from_pretrained(TARGET).float().eval().requires_grad_(False)
    folder = MODELS / "eagle3"
    shape = read_shape(folder, target.config.num_hidden_layers)
    drafter = Eagle3Drafter(shape)
    drafter.load_state_dict({name: tensor.float() for name, tensor in read_tensors(folder).items()})
    model = PEagle(drafter)
    optimizers = partial(make_optimizers, name="muon", rate=RATE, weight_decay=0.01, muon_factor=5.0)
    clip = partial(nn.utils.clip_grad_value_, clip_value=0.5)
    stages = [Stage(Steps(steps, 50), optimizers, linear(WARMUP, steps), clip)]
    recipe = {"steps": steps, "learning_rate": RATE, "batch": BATCH, "drafts": DRAFTS, "decay": DECAY}
    batches = DraftBatches(target, shape.layers, rows, BATCH, DRAFTS, LEVELS)
    log = fit(Step(model, target), batches, stages, Run(settings=recipe))
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(configuration(shape) | {"ptd_token_id": MASK}, indent=2) + "\n")
    tensors = drafter.state_dict() | {"mask_hidden": model.mask_hidden.detach()}
    save_file({name: tensor.half().contiguous() for name, tensor in tensors.items()}, out / SAFETENSORS)
    write_record(out, {"recipe": recipe, "log": log})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the rows that make_rows writes")
    parser.add_argument("--out", type=Path, required=True, help="folder for the drafter")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps")
    args = parser.parse_args()
    lines = (args.work / FILE).read_text(encoding="utf-8").splitlines()
    train([torch.tensor(json.loads(line)["token_ids"]) for line in lines], args.out, args.steps)


if __name__ == "__main__":
    main()

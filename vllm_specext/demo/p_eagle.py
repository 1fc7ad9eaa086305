"""A P-EAGLE drafter for the bundled target.

It begins with the weights of the bundled drafter for EAGLE-3, and learns what rows with mask tokens read in the place
of the target's states, and to draft from them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from vllm_specext.demo.at_once import MASKS, drafted, seen, train
from vllm_specext.demo.dflash import MASK
from vllm_specext.demo.draft_batches import Batch
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.methods.checkpoints import SAFETENSORS
from vllm_specext.training.eagle3.checkpoint import configuration, read_shape, read_tensors
from vllm_specext.training.eagle3.model import Eagle3Drafter
from vllm_specext.training.run import write_record


class PEagle(nn.Module):
    def __init__(self, drafter: Eagle3Drafter) -> None:
        super().__init__()
        self.drafter = drafter
        self.mask_hidden = nn.Parameter(0.1 * torch.randn(1, drafter.fc.in_features))

    def forward(self, batch: Batch, target: LlamaForCausalLM) -> Tensor:
        """A row of text has the token after its state, so that a draft's last one is the row before its anchor."""
        text = batch.token_ids.shape[1] - 1
        place = torch.arange(text).expand(len(batch.anchors), -1)
        masks = (batch.anchors[..., None] + torch.arange(MASKS)).flatten(1)
        ids = torch.cat((batch.token_ids[:, 1:], torch.full_like(masks, MASK)), dim=1)
        features = self.drafter.fc(batch.states[:, :text])
        not_known = self.drafter.fc(self.mask_hidden).expand(*masks.shape, -1)
        features = torch.cat((features, not_known), dim=1)
        positions = torch.cat((place, masks), dim=1)
        last = batch.anchors - 1
        layer = self.drafter.layer
        fused = layer.fuse(features, target.get_input_embeddings()(ids))
        attended, _ = layer.self_attn(fused, positions, seen(last, text), None)
        made = self.drafter.norm(layer.finish(features + attended))
        logits: Tensor = target.lm_head(drafted(made, last, text))
        return logits


def make(rows: Sequence[Tensor], out: Path, steps: int) -> None:
    """Write a drafter to ``out``, in the layout of those that were released first, with its losses beside it."""
    torch.manual_seed(0)
    target = LlamaForCausalLM.from_pretrained(TARGET).float().eval().requires_grad_(False)
    folder = MODELS / "eagle3"
    shape = read_shape(folder, target.config.num_hidden_layers)
    drafter = Eagle3Drafter(shape)
    drafter.load_state_dict({name: tensor.float() for name, tensor in read_tensors(folder).items()})
    model = PEagle(drafter)
    record = train(model, target, shape.layers, rows, steps)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(configuration(shape) | {"ptd_token_id": MASK}, indent=2) + "\n")
    tensors = drafter.state_dict() | {"mask_hidden": model.mask_hidden.detach()}
    save_file({name: tensor.half().contiguous() for name, tensor in tensors.items()}, out / SAFETENSORS)
    write_record(out, record)

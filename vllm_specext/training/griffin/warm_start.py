"""Where GRIFFIN's training begins, other than from random weights: another GRIFFIN drafter, or one of EAGLE-1, EAGLE-2
or HASS.

An EAGLE drafter is a GRIFFIN drafter without token-guided fusion's second half, and with one output feature for both
(``methods/griffin/from_eagle.py``). Here that half gets its full width: random rows that it expands with, as in an
untrained drafter, and zeros in the matrix that makes its output. So the drafter drafts what EAGLE drafts before the
first step, the zeros have a gradient in the first step, and the random rows from the second on.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vllm_specext.methods.checkpoints import tensor_shapes, weights_file
from vllm_specext.methods.griffin.checkpoint import EMBEDDING, check_against_target, read_shape, read_tensors
from vllm_specext.methods.griffin.from_eagle import is_eagle
from vllm_specext.methods.griffin.model import GriffinDrafter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

UP = "fc.mlp.up_proj.weight"
DOWN = "fc.mlp.down_proj.weight"


def warm_griffin_drafter(
    target: "PreTrainedModel", folder: Path, *, tgf_size: int | None = None, seed: int = 0
) -> GriffinDrafter:
    """The drafter of ``folder`` for ``target``, in float32, with the target's embedding, which is not trained.

    ``tgf_size`` is the width of the fusion that an EAGLE drafter gets, by default that of its MLP; a GRIFFIN drafter
    keeps its own. Whatever is wrong with the files, or does not fit the target, is a ``ConfigurationError``.
    """
    shape, tensors = read_shape(folder), read_tensors(folder)
    embedding = target.get_input_embeddings().weight.detach()
    check_against_target(shape, embedding.shape[1], embedding.shape[0])
    if is_eagle(tensor_shapes(weights_file(folder))):
        shape = replace(shape, tgf_size=tgf_size or shape.mlp_size)
        del tensors[UP]
        tensors[DOWN] = torch.zeros(shape.hidden_size, shape.tgf_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GriffinDrafter(shape)
    own = {name: tensor.float() for name, tensor in tensors.items()} | {EMBEDDING: embedding.float()}
    model.load_state_dict({UP: model.state_dict()[UP]} | own)
    model.embed_tokens.requires_grad_(False)
    return model

"""Checkpoints of EAGLE-1, EAGLE-2 and HASS read as GRIFFIN's: the same drafter, in GRIFFIN's tensors.

EAGLE's drafter is GRIFFIN's without the second half of token-guided fusion, and with one output feature for both. So
with zeros in that half's matrices, and EAGLE's ``down_proj`` twice, GRIFFIN's predict and regress feature are EAGLE's
one. The names are those of SafeAILab's and HASS's code: ``fc.weight`` ``[d, 2 d]``, which reads the embedding before
the feature as ``fc.fc.weight`` does, ``fc.bias`` or none, and no norm before attention.

A fusion of zeros is for serving: it gets no gradient, so that training would leave it as it is.
"""

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor

from vllm_specext.methods.checkpoints import Shapes

TGF_SIZE = 64
"""Width of the fusion of zeros. Eight columns for each of eight tensor-parallel ranks, as libraries' matrix products
want them; more would only cost time."""

FC, BIAS, DOWN = "fc.weight", "fc.bias", "layers.0.mlp.down_proj.weight"
_FUSION = ("fc.fc.", "fc.mlp.", "fc.post_attention_layernorm.")


def is_eagle(found: Collection[str]) -> bool:
    """Whether tensors of these names are an EAGLE-1, EAGLE-2 or HASS drafter's, complete or not. EAGLE-3 and DFlash
    have ``fc.weight`` too, and norms of their own."""
    others = (*_FUSION, "hidden_norm.", "midlayer.", "layers.0.hidden_norm.", "norm.", "d2t")
    return FC in found and not any(name.startswith(others) for name in found)


def in_eagle(shapes: Shapes, found: Collection[str]) -> Shapes:
    """What an EAGLE checkpoint with tensors of the names ``found`` must have, for the GRIFFIN drafter that has
    ``shapes``."""
    wanted = {name: shape for name, shape in shapes.items() if not name.startswith(_FUSION)}
    d, width = shapes["fc.mlp.down_proj.weight"][0], shapes[DOWN][1]
    wanted |= {FC: (d, 2 * d), DOWN: (d, width)}
    return wanted | ({BIAS: (d,)} if BIAS in found else {})


def as_griffin(tensors: Iterable[tuple[str, Tensor]], hidden_size: int) -> Iterator[tuple[str, Tensor]]:
    """``tensors`` by name as they come, those of an EAGLE drafter as GRIFFIN's; GRIFFIN's own are passed on.

    One pass, no more than one tensor of the file at a time. What is added has the dtype and device of ``fc.weight``.
    """
    fc = None
    has_bias = False
    for name, tensor in tensors:
        if name == FC:
            fc = tensor
            yield "fc.fc.weight", tensor
        elif name == BIAS:
            has_bias = True
            yield "fc.fc.bias", tensor
        elif name == DOWN and tensor.shape[:1] == (hidden_size,):
            yield name, torch.cat((tensor, tensor))
        else:
            yield name, tensor
    if fc is not None:
        if not has_bias:
            yield "fc.fc.bias", fc.new_zeros(hidden_size)
        yield "fc.post_attention_layernorm.weight", fc.new_ones(hidden_size)
        yield "fc.mlp.input_layernorm.weight", fc.new_ones(hidden_size)
        yield "fc.mlp.up_proj.weight", fc.new_zeros(TGF_SIZE, 2 * hidden_size)
        yield "fc.mlp.down_proj.weight", fc.new_zeros(hidden_size, TGF_SIZE)

"""How many of GRIFFIN's drafted tokens a target would accept, measured without a server."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training.acceptance import Acceptance, accepted_tokens, summarise
from vllm_specext.training.features import target_features
from vllm_specext.training.griffin.passes import simulate_chains

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def measure_acceptance(
    model: GriffinDrafter, target: "PreTrainedModel", rows: Tensor, prompt_length: int, chain: int = 4, batch: int = 16
) -> Acceptance:
    """Acceptance of GRIFFIN's greedy chains of ``chain`` tokens on ``rows`` ``[N, T]``, after ``prompt_length``."""
    accepted = torch.cat([_accepted(model, target, part, chain) for part in rows.split(batch)])
    return summarise(accepted, prompt_length, chain)


def _accepted(model: GriffinDrafter, target: "PreTrainedModel", rows: Tensor, chain: int) -> Tensor:
    features = target_features(target, rows)[:, :-1]
    return accepted_tokens(simulate_chains(model, target.lm_head.weight.float(), rows[:, 1:], features, chain), rows)

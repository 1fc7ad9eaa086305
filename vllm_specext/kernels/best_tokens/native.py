"""The most likely tokens in C++ on a CPU."""

import torch
from torch import Tensor

from vllm_specext.kernels.native.operators import FLOAT, LONG, SINGLE, Operator

BEST_TOKENS = Operator(
    "best_tokens", {"logits": FLOAT, "sharpness": SINGLE, "out_tokens": LONG, "out_log_probs": SINGLE}
)


def takes(logits: Tensor, k: int) -> bool:
    return k <= logits.shape[-1] and logits.stride(-1) == 1 and BEST_TOKENS.takes(logits)


def best_tokens(logits: Tensor, k: int, sharpness: Tensor) -> tuple[Tensor, Tensor]:
    """``tree.expansion.best_tokens``; of equally likely tokens the one with the lower number comes first."""
    shape = (*logits.shape[:-1], k)
    rows = logits.reshape(-1, logits.shape[-1])
    tokens = torch.empty(shape, dtype=torch.int64, device=logits.device)
    log_probs = torch.empty(shape, dtype=torch.float32, device=logits.device)
    BEST_TOKENS.overload(rows, sharpness.reshape(-1), tokens.view(-1, k), log_probs.view(-1, k))
    return tokens, log_probs

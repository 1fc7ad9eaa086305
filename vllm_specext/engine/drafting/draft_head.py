"""The target's output layer as a drafter uses it: whole, or the rows of the tokens that it scores.

Shapes: ``T`` rows of features, ``d`` hidden size, ``S`` tokens that are scored, ``V`` the target's.
"""

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

from vllm_specext.engine.drafting.float8_head import Float8Head
from vllm_specext.engine.drafting.target import logits_processor_of
from vllm_specext.engine.float8 import has_head_in_float8
from vllm_specext.errors import ConfigurationError


class DraftHead(nn.Module):
    def __init__(self, head: Any, processor: Any, ids: Tensor | None = None) -> None:
        """``head``: a ``ParallelLMHead`` of ``V`` or ``S`` rows; ``processor``: the ``LogitsProcessor`` for as many.
        ``ids`` ``[S]`` int64: the target's tokens that the rows are for, where they are not all."""
        super().__init__()
        self.head, self.processor = head, processor
        self.register_buffer("ids", ids, persistent=False)
        self.ids: Tensor | None

    def forward(self, features: Tensor) -> Tensor:
        """Logits ``[T, S]``, on every rank, of ``features`` ``[T, d]``."""
        logits: Tensor = self.processor(self.head, features)
        return logits

    def target_ids(self, tokens: Tensor) -> Tensor:
        """The target's ids of ``tokens``, int64 of any shape, which are places among those that are scored."""
        return tokens if self.ids is None else self.ids[tokens]


def draft_head(head: Any, target_model: Any, config: Any) -> DraftHead:
    """The target's ``head`` for a drafter that scores the tokens that ``config``, the ``SpecExtConfig``, has for it,
    with the target's scale and cap of logits; a copy in float8, if it asks for that.

    Frequent tokens have low ids, and most of them would be the first rank's. So all ranks gather the rows once, and
    split them anew: each multiplies by as many, and step by step a shorter row of logits is gathered. Raises
    ``ConfigurationError`` for a quantised head.
    """
    processor, vocabulary = logits_processor_of(target_model), config.draft_vocabulary
    in_float8 = has_head_in_float8(config.options)
    if vocabulary is None:
        return DraftHead(Float8Head(head) if in_float8 else head, processor)
    ids, rows = _rows(head, torch.tensor(vocabulary))
    with rows.device:
        small = ParallelLMHead(*rows.shape, params_dtype=rows.dtype)
    small.weight_loader(small.weight, rows)
    small.quant_method.process_weights_after_loading(small)
    scoring = copy(processor)
    scoring.vocab_size = scoring.org_vocab_size = len(ids)
    return DraftHead(Float8Head(small) if in_float8 else small, scoring, ids)


def _rows(head: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """``ids`` where the head is, and its rows ``[S, d]``, of which each rank has its share, on all ranks."""
    shard = head.shard_indices
    plain = isinstance(head.quant_method, UnquantizedEmbeddingMethod | UnquantizedLinearMethod)
    if not plain or len(head.weight) < shard.num_org_elements:
        raise ConfigurationError(
            f"draft_vocab_size and d2t need an output layer whose rows can be taken, but the target's is quantised "
            f"({type(head.quant_method).__name__}); without them the drafter scores all tokens."
        )
    ids = ids.to(head.weight.device)  # quantised heads may have none
    first = shard.org_vocab_start_index
    own = (ids >= first) & (ids < shard.org_vocab_end_index)
    found: Tensor = head.weight.detach()[torch.where(own, ids - first, 0)]
    found[~own] = 0
    # One rank's share and zeros: the sum is exact.
    return ids, tensor_model_parallel_all_reduce(found) if head.tp_size > 1 else found

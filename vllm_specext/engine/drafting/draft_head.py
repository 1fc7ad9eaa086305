"""The target's output layer as a drafter uses it: whole, or the rows of the tokens that it scores.

Shapes: ``T`` rows of features, ``d`` hidden size, ``S`` tokens that are scored, ``V`` the target's.
"""

from collections.abc import Callable
from copy import copy
from functools import partial
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
    def __init__(
        self, head: Any, processor: Any, ids: Tensor | None = None, renew: Callable[[], None] | None = None
    ) -> None:
        """``head``: a ``ParallelLMHead`` of ``V`` or ``S`` rows; ``processor``: the ``LogitsProcessor`` for as many.
        ``ids`` ``[S]`` int64: the target's tokens that the rows are for, where they are not all. ``renew`` copies the
        rows anew, where they are copies."""
        super().__init__()
        self.head, self.processor, self._renew = head, processor, renew
        self.register_buffer("ids", ids, persistent=False)
        self.ids: Tensor | None

    def forward(self, features: Tensor) -> Tensor:
        """Logits ``[T, S]``, on every rank, of ``features`` ``[T, d]``."""
        logits: Tensor = self.processor(self.head, features)
        return logits

    def renew(self) -> None:
        """Copy the target's rows once more, which are others by now; in place."""
        if self._renew is not None:
            self._renew()

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
        return DraftHead(Float8Head(head, lambda: head) if in_float8 else head, processor)
    _require_rows(head)
    ids = torch.tensor(vocabulary).to(head.weight.device)
    source = partial(_small, head, ids)
    own = Float8Head(source(), source) if in_float8 else source()
    scoring = copy(processor)
    scoring.vocab_size = scoring.org_vocab_size = len(ids)
    return DraftHead(own, scoring, ids, None if in_float8 else partial(_fill, own, head, ids))


def _small(head: Any, ids: Tensor) -> Any:
    """A ``ParallelLMHead`` of the rows ``ids`` ``[S]`` of ``head``."""
    with head.weight.device:
        small = ParallelLMHead(len(ids), head.weight.shape[1], params_dtype=head.weight.dtype)
    _fill(small, head, ids)
    return small


def _fill(small: Any, head: Any, ids: Tensor) -> None:
    small.weight_loader(small.weight, _rows(head, ids))
    small.quant_method.process_weights_after_loading(small)


def _require_rows(head: Any) -> None:
    """Raises ``ConfigurationError`` for a ``head`` whose rows cannot be taken."""
    plain = isinstance(head.quant_method, UnquantizedEmbeddingMethod | UnquantizedLinearMethod)
    if not plain or len(head.weight) < head.shard_indices.num_org_elements:  # quantised ones may have no weight
        raise ConfigurationError(
            f"draft_vocab_size and d2t need an output layer whose rows can be taken, but the target's is quantised "
            f"({type(head.quant_method).__name__}); without them the drafter scores all tokens."
        )


def _rows(head: Any, ids: Tensor) -> Tensor:
    """The rows ``ids`` of ``head``, of which each rank has its share, on all ranks: ``[S, d]``."""
    first, end = head.shard_indices.org_vocab_start_index, head.shard_indices.org_vocab_end_index
    own = (ids >= first) & (ids < end)
    found: Tensor = head.weight.detach()[torch.where(own, ids - first, 0)]
    found[~own] = 0
    # One rank's share and zeros: the sum is exact.
    return tensor_model_parallel_all_reduce(found) if head.tp_size > 1 else found

"""Random steps of an engine: requests in every phase, in scattered slots, with and without drafts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

VOCAB = 97
MAX_REQS = 9  # request slots
MAX_LEN = 64
MAX_DRAFTS = 4


def ints(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass
class Step:
    """One scheduled batch as the runner sees it; slot-indexed fields have ``MAX_REQS`` entries."""

    idx_mapping: torch.Tensor  # [R] int64
    query_start_loc: torch.Tensor  # [MAX_REQS + 1], padded with the number of tokens
    cu_num_logits: torch.Tensor  # [R + 1]
    seq_lens: torch.Tensor  # [R]
    prompt_len: torch.Tensor
    prefill_len: torch.Tensor
    total_len: torch.Tensor
    num_computed_tokens: torch.Tensor
    all_token_ids: torch.Tensor  # [MAX_REQS, MAX_LEN]
    num_sampled: torch.Tensor  # [R]
    random: torch.Generator

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What hypothesis prints of a failing example."""
        lengths = self.query_start_loc.diff()[: self.num_reqs].tolist()
        slots, rows = self.idx_mapping.tolist(), self.cu_num_logits.diff().tolist()
        printer.text(f"Step(slots={slots}, query_len={lengths}, num_logits={rows}, seed={self.random.initial_seed()})")

    @property
    def num_reqs(self) -> int:
        return len(self.idx_mapping)

    @property
    def num_tokens(self) -> int:
        return int(self.query_start_loc[-1])

    @property
    def num_logits(self) -> int:
        return int(self.cu_num_logits[-1])

    @property
    def expanded_local_pos(self) -> torch.Tensor:
        counts = self.cu_num_logits.diff()
        return ints([i for n in counts.tolist() for i in range(n)])

    @property
    def expanded_idx_mapping(self) -> torch.Tensor:
        return self.idx_mapping.repeat_interleave(self.cu_num_logits.diff())

    def tokens(self, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.randint(VOCAB, shape, generator=self.random).to(dtype)

    def logits(self, *shape: int, scale: float = 3.0) -> torch.Tensor:
        return torch.randn(*shape, generator=self.random) * scale

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=self.random)

    def seeds(self) -> torch.Tensor:
        info = torch.iinfo(torch.int64)
        return torch.randint(info.min, info.max, (MAX_REQS,), generator=self.random)


@st.composite
def steps(draw: st.DrawFn, drafts: bool = True, decoding_only: bool = False) -> Step:
    num_reqs = draw(st.integers(1, 5))
    slots = draw(st.permutations(range(MAX_REQS)))[:num_reqs]
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    prompt_len, prefill_len, total_len, computed = (np.ones(MAX_REQS, dtype=np.int32) for _ in range(4))
    query_len, num_logits, num_sampled = [], [], []
    for slot in slots:
        prefill_len[slot] = prefill = draw(st.integers(1, 20))
        prompt_len[slot] = draw(st.integers(1, prefill))
        drafted = draw(st.integers(0, MAX_DRAFTS)) if drafts else 0
        phase = "decode" if decoding_only else draw(st.sampled_from(["chunk", "last chunk", "decode"]))
        if phase == "decode":
            computed[slot] = prefill + draw(st.integers(0, 20))
            total_len[slot] = computed[slot] + 1
            query_len.append(1 + drafted)
        else:
            computed[slot] = draw(st.integers(0, prefill - 1))
            total_len[slot] = prefill
            remaining = prefill - int(computed[slot])
            if phase == "chunk":
                drafted = 0
                query_len.append(draw(st.integers(1, remaining)))
            else:
                # Drafts in the step that ends a prompt are placeholders.
                query_len.append(remaining + drafted)
        num_logits.append(1 + drafted)
        num_sampled.append(draw(st.integers(1, 1 + drafted)))
    starts = np.cumsum([0, *query_len])
    padding = [starts[-1]] * (MAX_REQS - num_reqs)
    return Step(
        idx_mapping=torch.tensor(slots),
        query_start_loc=ints([*starts, *padding]),
        cu_num_logits=ints(np.cumsum([0, *num_logits])),
        seq_lens=ints(computed[slots] + query_len),
        prompt_len=ints(prompt_len),
        prefill_len=ints(prefill_len),
        total_len=ints(total_len),
        num_computed_tokens=ints(computed),
        all_token_ids=torch.randint(VOCAB, (MAX_REQS, MAX_LEN), generator=random, dtype=torch.int32),
        num_sampled=ints(num_sampled),
        random=random,
    )

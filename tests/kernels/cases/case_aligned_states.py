"""Recurrent states that are copied between the blocks of a cache of prefixes."""

import torch
from compare import assert_body_equals_kernel
from hypothesis import given
from hypothesis import strategies as st
from steps import MAX_LEN, MAX_REQS, Step, ints, steps
from torch import Tensor
from vllm.v1.worker import mamba_utils
from vllm.v1.worker.mamba_utils import MambaSpecDecodeGPUContext

BLOCK, WIDTH, ROWS = 8, 6, 4
"""Tokens of a block, inputs that a convolution keeps, and the most rows that were accepted."""
COLUMNS = MAX_LEN // BLOCK + ROWS + 1


def context(tables: Tensor, conv: Tensor, states: Tensor) -> MambaSpecDecodeGPUContext:
    """vLLM's, of two groups of layers with block ``tables`` ``[2, MAX_REQS, COLUMNS]``, of which the first has the
    inputs ``conv`` ``[B, WIDTH, C]`` and the second the ``states`` ``[B, ...]``."""
    both, groups = (conv, states), len(tables)

    def longs(values: object) -> Tensor:
        return torch.tensor(values, dtype=torch.int64)

    pointers = longs([table.data_ptr() for table in tables])
    return MambaSpecDecodeGPUContext(
        state_base_addrs=longs([each.data_ptr() for each in both]),
        state_block_strides=longs([each.stride(0) * each.element_size() for each in both]),
        state_elem_sizes=ints([each.element_size() for each in both]),
        state_inner_sizes=longs([conv.stride(1), states[0].numel()]),
        state_conv_widths=ints([WIDTH, 0]),
        state_group_indices=ints([0, 1]),
        state_dim_row_count=ints([0, 0]),
        state_dim_row_stride=longs([0, 0]),
        block_size=BLOCK,
        num_states=2,
        mamba_group_ids=list(range(groups)),
        num_groups=groups,
        num_accepted_tokens_out=torch.zeros(MAX_REQS, dtype=torch.int32),
        block_table_ptrs=pointers,
        aligned_index_block_table_ptrs=pointers,
        block_table_stride_req=tables.stride(1),
        is_initialized=True,
    )


def before_a_step(
    tables: Tensor, conv: Tensor, states: Tensor, state_idx: Tensor, accepted: Tensor, slots: Tensor, *step: Tensor
) -> None:
    """vLLM's launches; ``step``: where its requests begin, and how many tokens they had."""
    source, bias = torch.full_like(state_idx, -7), torch.full_like(state_idx, -7)
    starts, computed = step
    mamba_utils.preprocess_mamba_align_fused_kernel[(1,)](
        slots, state_idx, computed, starts, accepted, source, bias, len(slots), BLOCK_SIZE=16, MAMBA_BLOCK_SIZE=BLOCK
    )
    own = context(tables, conv, states)
    own.run_fused_precopy(len(slots), state_idx, source, bias, slots)


def after_a_step(
    tables: Tensor, conv: Tensor, states: Tensor, state_idx: Tensor, accepted: Tensor, slots: Tensor, computed: Tensor
) -> None:
    own = context(tables, conv, states)
    own.run_fused_postprocess_align(len(slots), accepted, state_idx, computed, slots)


def memory(step: Step, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Tables of blocks that nobody else has, inputs and states with gaps, and for each slot how much was accepted."""
    blocks = MAX_REQS * COLUMNS
    tables = torch.stack([torch.randperm(blocks, generator=step.random) for _ in range(2)]).to(torch.int32)
    conv = step.logits(blocks, WIDTH + 1, 3).to(dtype)[:, :WIDTH]
    states = step.logits(blocks, 3, 5)[:, :2]
    accepted = torch.randint(1, ROWS + 1, (MAX_REQS,), generator=step.random).to(torch.int32)
    return tables.view(2, MAX_REQS, COLUMNS), conv, states, accepted


@given(steps(), st.sampled_from([torch.float16, torch.float32]))
def test_states_go_to_the_block_of_a_steps_last_token(step: Step, dtype: torch.dtype) -> None:
    tables, conv, states, accepted = memory(step, dtype)
    at = (step.num_computed_tokens - 1) // BLOCK
    step_of = step.idx_mapping, step.query_start_loc, step.num_computed_tokens
    assert_body_equals_kernel(before_a_step, tables, conv, states, at, accepted, *step_of)


@given(steps(), st.sampled_from([torch.float16, torch.float32]), st.integers(0, 1))
def test_states_stay_where_a_block_ends(step: Step, dtype: torch.dtype, further: int) -> None:
    """``further``: whether the block of the last token that was scheduled may be the one after that of the last that
    was accepted."""
    tables, conv, states, accepted = memory(step, dtype)
    computed = torch.randint(ROWS, MAX_LEN, (MAX_REQS,), generator=step.random)
    at = (computed - 1) // BLOCK + torch.randint(0, 1 + further, (MAX_REQS,), generator=step.random)
    of_all = tables, conv, states, at.to(torch.int32), accepted, step.idx_mapping, computed.to(torch.int32)
    assert_body_equals_kernel(after_a_step, *of_all)

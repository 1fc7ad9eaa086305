from types import SimpleNamespace

import torch
from compare import assert_body_equals_kernel
from hypothesis import given
from hypothesis import strategies as st
from steps import MAX_LEN, MAX_REQS, Step, ints, steps
from vllm.v1.worker.gpu.mm.rope import RopeState


def prepare(positions: torch.Tensor, known: torch.Tensor, delta: torch.Tensor, *step: torch.Tensor) -> None:
    """vLLM's launch, with a state that holds these tensors."""
    axes = len(positions)
    state = SimpleNamespace(
        num_dims=axes,
        max_model_len=MAX_LEN,
        positions=positions,
        prefill_positions=SimpleNamespace(gpu=known),
        prefill_delta=SimpleNamespace(gpu=delta),
    )
    RopeState.prepare_positions(state, *step)


@given(steps(), st.sampled_from([3, 4]))
def test_positions_on_several_axes(step: Step, axes: int) -> None:
    assert_body_equals_kernel(
        prepare,
        step.tokens(axes, step.num_tokens + 4, dtype=torch.int64),
        step.tokens(MAX_REQS * axes, MAX_LEN),
        ints(torch.randint(-9, 9, (MAX_REQS,), generator=step.random).tolist()),
        step.idx_mapping,
        step.query_start_loc,
        step.prefill_len,
        step.num_computed_tokens,
    )

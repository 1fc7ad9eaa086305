from types import SimpleNamespace

import torch
import vllm.v1.worker.gpu.spec_decode.dflash.speculator as blocks
import vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator as standalone
import vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator as dependent
from compare import assert_body_equals_kernel
from hypothesis import given
from hypothesis import strategies as st
from steps import MAX_DRAFTS, MAX_REQS, Step, ints, steps
from vllm.v1.worker.gpu.input_batch import InputBuffers

HIDDEN = 6


def input_buffers(step: Step) -> list[torch.Tensor]:
    """Stale contents, as the buffers of a running engine hold."""
    room = step.num_tokens + MAX_REQS
    return [
        step.tokens(room),
        step.tokens(room, dtype=torch.int64),
        step.tokens(MAX_REQS + 1),
        step.tokens(MAX_REQS),
    ]


def as_input_buffers(tensors: list[torch.Tensor]) -> InputBuffers:
    buffers = InputBuffers(MAX_REQS, len(tensors[0]), torch.device("cpu"))
    buffers.input_ids, buffers.positions, buffers.query_start_loc, buffers.seq_lens = tensors[:4]
    if tensors[4:]:
        (buffers.is_padding,) = tensors[4:]
    return buffers


def as_input_batch(step: Step, tensors: list[torch.Tensor]) -> SimpleNamespace:
    return SimpleNamespace(
        num_reqs=step.num_reqs,
        num_tokens=step.num_tokens,
        input_ids=tensors[0],
        positions=tensors[1],
        idx_mapping=step.idx_mapping,
        query_start_loc=step.query_start_loc,
        query_start_loc_np=step.query_start_loc.numpy(),
        seq_lens=step.seq_lens,
    )


def num_rejected(step: Step) -> torch.Tensor:
    return ints(step.cu_num_logits.diff().tolist()) - step.num_sampled


@given(steps())
def test_accepted_rows_feed_the_drafter(step: Step) -> None:
    sampled = step.num_sampled * (step.seq_lens >= step.prefill_len[step.idx_mapping])

    def launch(last_indices, current_step, draft, target, num_sampled, rejected, last_sampled, next_prefill):  # type: ignore[no-untyped-def]
        return dependent.prepare_prefill_inputs(
            last_indices,
            current_step,
            as_input_buffers(draft),
            as_input_batch(step, target),
            num_sampled,
            rejected,
            last_sampled,
            next_prefill,
            MAX_REQS,
        )

    assert_body_equals_kernel(
        launch,
        step.tokens(MAX_REQS, dtype=torch.int64),
        torch.tensor(3),
        input_buffers(step),
        input_buffers(step),
        sampled,
        num_rejected(step),
        step.tokens(MAX_REQS, 1, dtype=torch.int64),
        step.tokens(1, MAX_REQS),
    )


@given(steps(), st.booleans(), st.integers(20, 60))
def test_first_draft_becomes_an_input(step: Step, advance: bool, max_model_len: int) -> None:
    def launch(drafts, rejected, buffers, sources):  # type: ignore[no-untyped-def]
        dependent.prepare_decode_inputs(
            drafts[: step.num_reqs, 0],
            step.seq_lens,
            rejected,
            as_input_buffers(buffers),
            sources,
            max_model_len,
            MAX_REQS,
            advance,
        )

    assert_body_equals_kernel(
        launch,
        step.tokens(MAX_REQS, MAX_DRAFTS, dtype=torch.int64),
        num_rejected(step),
        input_buffers(step),
        step.tokens(MAX_REQS, dtype=torch.int64),
    )


@given(steps(), st.integers(0, MAX_DRAFTS - 1), st.booleans(), st.integers(20, 60))
def test_each_draft_becomes_the_next_input(step: Step, position: int, advance: bool, max_model_len: int) -> None:
    def launch(drafted, current_step, hidden, drafts, next_hidden, buffers, sources):  # type: ignore[no-untyped-def]
        dependent.update_draft_inputs(
            drafted,
            current_step,
            hidden,
            drafts,
            next_hidden,
            as_input_buffers(buffers),
            sources,
            step.num_reqs,
            max_model_len,
            MAX_DRAFTS,
            advance,
        )

    assert_body_equals_kernel(
        launch,
        step.tokens(step.num_reqs, dtype=torch.int64),
        torch.tensor(position),
        step.logits(MAX_REQS, HIDDEN),
        step.tokens(MAX_REQS, MAX_DRAFTS, dtype=torch.int64),
        step.logits(MAX_REQS, HIDDEN),
        input_buffers(step),
        step.tokens(MAX_REQS, dtype=torch.int64),
    )


@given(steps(), st.integers(20, 60))
def test_a_standalone_drafter_reads_one_more_row_per_request(step: Step, max_model_len: int) -> None:
    def launch(buffers, target, last_sampled, rejected, ids, positions, last_indices):  # type: ignore[no-untyped-def]
        return standalone.prepare_prefill_inputs(
            as_input_buffers(buffers),
            as_input_batch(step, target),
            last_sampled,
            rejected,
            ids,
            positions,
            last_indices,
            MAX_REQS,
            max_model_len,
        )

    room = step.num_tokens + MAX_REQS
    assert_body_equals_kernel(
        launch,
        input_buffers(step),
        input_buffers(step),
        step.tokens(MAX_REQS, dtype=torch.int64),
        num_rejected(step),
        step.tokens(room),
        step.tokens(room, dtype=torch.int64),
        step.tokens(MAX_REQS, dtype=torch.int64),
    )


@given(steps(), st.booleans(), st.integers(40, 100))
def test_a_block_drafter_reads_the_accepted_rows_and_a_block(step: Step, from_anchor: bool, max_model_len: int) -> None:
    width = MAX_DRAFTS + (not from_anchor)
    room, sampled = max(step.num_tokens, MAX_REQS * width), MAX_REQS * MAX_DRAFTS

    def launch(own, query_slots, positions, slots, indices, sample_pos, rows, kept, batch, given):  # type: ignore[no-untyped-def]
        input_batch = as_input_batch(step, batch)
        input_batch.num_scheduled_tokens = step.query_start_loc.diff()[: step.num_reqs].numpy()
        blocks.prepare_dflash_inputs(
            as_input_buffers(own),
            query_slots,
            positions,
            slots,
            indices,
            sample_pos,
            rows,
            kept[0],
            kept[1],
            input_batch,
            given[0],
            num_rejected(step),
            given[1],
            given[2],
            given[3],
            given[4],
            given[5],
            block_size=4,
            cp_rank=0,
            cp_size=1,
            cp_interleave=1,
            parallel_drafting_token_id=7,
            num_query_per_req=width,
            num_speculative_steps=MAX_DRAFTS,
            max_num_reqs=MAX_REQS,
            max_num_tokens=room,
            max_model_len=max_model_len,
            sample_from_anchor=from_anchor,
        )

    def long(*shape: int) -> torch.Tensor:
        return step.tokens(*shape, dtype=torch.int64)

    assert_body_equals_kernel(
        launch,
        [step.tokens(room), long(room), step.tokens(MAX_REQS + 1), step.tokens(MAX_REQS), step.uniform(room) > 0.5],
        long(room),
        long(room),
        long(room),
        long(sampled),
        long(sampled),
        long(sampled),
        [step.uniform(MAX_REQS), step.seeds()],
        input_buffers(step),
        [
            step.num_sampled * (step.seq_lens >= step.prefill_len[step.idx_mapping]),
            long(MAX_REQS, 1),
            step.tokens(1, MAX_REQS),
            step.uniform(MAX_REQS),
            step.seeds(),
            step.tokens(MAX_REQS, 26) % 11,
        ],
    )

import torch
import vllm.v1.worker.gpu.input_batch as input_batch
from compare import assert_body_equals_kernel
from hypothesis import given
from hypothesis import strategies as st
from steps import MAX_DRAFTS, MAX_REQS, VOCAB, Step, ints, steps

from vllm_specext.cpu_runner import inputs


@given(steps(), st.integers(1, 3))
def test_prompt_tokens_are_copied(step: Step, lookahead: int) -> None:
    assert_body_equals_kernel(
        input_batch.prepare_prefill_inputs,
        step.tokens(step.num_tokens + 3),
        step.tokens(lookahead, MAX_REQS),
        step.idx_mapping,
        step.query_start_loc,
        step.all_token_ids,
        step.prefill_len,
        step.num_computed_tokens,
    )


@given(steps())
def test_positions_and_sequence_lengths(step: Step) -> None:
    assert_body_equals_kernel(
        input_batch.prepare_pos_seq_lens,
        step.idx_mapping,
        step.query_start_loc,
        step.num_computed_tokens,
        step.tokens(step.num_tokens + 3, dtype=torch.int64),
        step.tokens(MAX_REQS),
    )


@given(steps(), st.sampled_from([0, 1]))
def test_sampled_and_drafted_tokens_become_inputs(step: Step, num_new: int) -> None:
    assert_body_equals_kernel(
        input_batch.combine_sampled_and_draft_tokens,
        step.tokens(step.num_tokens + 3),
        step.idx_mapping,
        step.tokens(MAX_REQS, 1, dtype=torch.int64),
        step.query_start_loc,
        step.seq_lens,
        step.prefill_len,
        step.tokens(MAX_REQS, MAX_DRAFTS + 1, dtype=torch.int64),
        step.cu_num_logits,
        step.num_logits,
        num_new,
    )


@given(steps())
def test_requests_in_their_prompt_sample_nothing(step: Step) -> None:
    assert_body_equals_kernel(
        input_batch.get_num_sampled_and_rejected,
        step.num_sampled,
        step.seq_lens,
        step.cu_num_logits,
        step.idx_mapping,
        step.prefill_len,
    )


@given(steps(), st.booleans(), st.booleans(), st.booleans())
def test_sampled_tokens_are_appended(step: Step, count: bool, advance: bool, skip: bool) -> None:
    if skip:
        step.idx_mapping[0] = -1
    num_sampled = step.num_sampled - step.tokens(step.num_reqs) % 2
    assert_body_equals_kernel(
        input_batch.post_update,
        step.idx_mapping,
        step.num_computed_tokens,
        step.tokens(MAX_REQS, 1, dtype=torch.int64),
        step.tokens(MAX_REQS, VOCAB) if count else None,
        step.tokens(step.num_reqs, MAX_DRAFTS + 1, dtype=torch.int64) % 3,  # repeated tokens count twice
        num_sampled,
        ints(step.cu_num_logits.diff().tolist()) - num_sampled,
        step.query_start_loc if advance else None,
        step.all_token_ids,
        step.total_len,
    )


@given(steps(), st.booleans())
def test_drafts_of_another_rank_are_kept(step: Step, skip: bool) -> None:
    """What vLLM 0.33 has the kernel do too; 0.32's launch knows nothing of it."""
    if skip:
        step.idx_mapping[0] = -1
    drafts, kept = step.tokens(step.num_reqs, MAX_DRAFTS), step.tokens(MAX_REQS, MAX_DRAFTS)
    expected = kept.clone()
    for request, slot in enumerate(step.idx_mapping.tolist()):
        if slot >= 0:
            expected[slot] = drafts[request]
    inputs.post_update(
        step.idx_mapping, step.num_computed_tokens, step.tokens(MAX_REQS, 1, dtype=torch.int64), None, 0,
        step.tokens(step.num_reqs, MAX_DRAFTS + 1, dtype=torch.int64), MAX_DRAFTS + 1, step.num_sampled,
        step.num_sampled * 0, step.query_start_loc, step.all_token_ids, step.all_token_ids.stride(0), step.total_len,
        drafts, kept, MAX_DRAFTS,
    )  # fmt: skip
    assert torch.equal(kept, expected)


@given(steps())
def test_computed_tokens_advance(step: Step) -> None:
    assert_body_equals_kernel(
        input_batch.post_update_num_computed_tokens, step.idx_mapping, step.num_computed_tokens, step.query_start_loc
    )


@given(steps())
def test_logits_rows_know_their_request(step: Step) -> None:
    assert_body_equals_kernel(
        input_batch.expand_idx_mapping, step.idx_mapping, step.num_logits, step.cu_num_logits, MAX_DRAFTS + 1
    )

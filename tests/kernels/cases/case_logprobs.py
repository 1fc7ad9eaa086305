from types import SimpleNamespace

import torch
from compare import assert_body_equals_kernel
from hypothesis import given
from hypothesis import strategies as st
from steps import MAX_REQS, VOCAB, Step, steps
from vllm.v1.worker.gpu.metrics.logits import get_num_nans
from vllm.v1.worker.gpu.sample.logprob import compute_token_logprobs, compute_topk_scores
from vllm.v1.worker.gpu.sample.prompt_logprob import get_prompt_logprobs_token_ids

# The interpreter compares bfloat16 by its bits, so kernels that do not widen it first are run in float32 only.
dtypes = st.sampled_from([torch.float32, torch.bfloat16])


@given(steps(), dtypes, st.integers(1, 4), st.sampled_from([VOCAB, 1300]))
def test_log_probabilities(step: Step, dtype: torch.dtype, scored: int, vocab_size: int) -> None:
    logits = step.logits(step.num_logits, vocab_size).to(dtype)
    logits[0, :5] = float("-inf")
    ids = step.tokens(step.num_logits, scored, dtype=torch.int64)
    assert_body_equals_kernel(compute_token_logprobs, logits, ids, rtol=1e-6, atol=2e-6)


@given(steps(), st.integers(0, 3), st.booleans())
def test_reported_tokens_and_ranks(step: Step, num_logprobs: int, lists: bool) -> None:
    longest = 4
    listed = SimpleNamespace(
        num_token_ids=SimpleNamespace(gpu=step.tokens(MAX_REQS) % (longest + 1)),
        token_ids=SimpleNamespace(gpu=step.tokens(MAX_REQS, longest + 2)),
    )

    def launch(logits: torch.Tensor, sampled: torch.Tensor) -> list[torch.Tensor]:
        result = compute_topk_scores(
            logits,
            num_logprobs,
            sampled,
            logprob_token_ids_state=listed,  # type: ignore[arg-type]
            expanded_idx_mapping=step.expanded_idx_mapping,
            max_per_req_token_ids=longest if lists else 0,
        )
        return [result.logprob_token_ids, result.logprobs, result.selected_token_ranks]

    # Rounded logits: ties are counted too.
    logits = step.logits(step.num_logits, VOCAB).round()
    sampled = step.tokens(step.num_logits, dtype=torch.int64)
    assert_body_equals_kernel(launch, logits, sampled, rtol=1e-6, atol=2e-6)


@given(steps(drafts=False))
def test_prompt_tokens_to_score(step: Step) -> None:
    assert_body_equals_kernel(
        get_prompt_logprobs_token_ids,
        step.num_tokens,
        step.query_start_loc,
        step.idx_mapping,
        step.num_computed_tokens,
        step.all_token_ids,
    )


@given(steps(), dtypes)
def test_nan_counts(step: Step, dtype: torch.dtype) -> None:
    logits = step.logits(step.num_logits, VOCAB).to(dtype)
    logits[step.uniform(step.num_logits, VOCAB) < 0.1] = float("nan")
    assert_body_equals_kernel(get_num_nans, logits)

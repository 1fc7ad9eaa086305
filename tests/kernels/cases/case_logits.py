import inspect

import numpy as np
import torch
from compare import assert_body_equals_kernel
from hypothesis import given
from hypothesis import strategies as st
from steps import MAX_DRAFTS, MAX_LEN, MAX_REQS, VOCAB, Step, ints, steps
from vllm.v1.worker.gpu import structured_outputs
from vllm.v1.worker.gpu.sample.bad_words import apply_bad_words
from vllm.v1.worker.gpu.sample.logit_bias import apply_logit_bias
from vllm.v1.worker.gpu.sample.penalties import apply_penalties, bincount
from vllm.v1.worker.gpu.sample.thinking_budget import apply_thinking_budget
from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker

LIST_LEN = 5
HAS_FIXED_WIDTH = "num_bonus_tokens" not in inspect.signature(StructuredOutputsWorker).parameters
"""Whether each request with a grammar has as many masks as any request may have rows, as from vLLM 0.33 on."""


def distinct_tokens(step: Step, length: int) -> torch.Tensor:
    return torch.stack([torch.randperm(VOCAB, generator=step.random)[:length] for _ in range(MAX_REQS)]).int()


@given(steps(), st.booleans())
def test_bias_allowed_ids_and_minimum_length(step: Step, restore: bool) -> None:
    stops = distinct_tokens(step, LIST_LEN)
    logits = step.logits(step.num_logits, VOCAB)
    counts = [step.tokens(MAX_REQS) % (LIST_LEN + 1) for _ in range(3)]
    if restore:
        # A grammar that leaves nothing but stop tokens.
        logits[0] = float("-inf")
        logits[0, stops[step.idx_mapping[0]].long()] = 1.0
        counts[0][step.idx_mapping[0]] = 0
        counts[2][step.idx_mapping[0]] = LIST_LEN
    assert_body_equals_kernel(
        apply_logit_bias,
        logits,
        step.expanded_idx_mapping,
        step.tokens(step.num_logits, dtype=torch.int64) % 20,
        counts[0],
        distinct_tokens(step, LIST_LEN),
        counts[1],
        distinct_tokens(step, LIST_LEN),
        step.logits(MAX_REQS, LIST_LEN),
        step.tokens(MAX_REQS) % 30,
        counts[2],
        step.tokens(MAX_REQS) % 2,
        stops,
        restore,
    )


@given(steps())
def test_penalties(step: Step) -> None:
    def sometimes(values: torch.Tensor, neutral: float) -> torch.Tensor:
        return torch.where(step.uniform(MAX_REQS) < 0.5, values, neutral)

    assert_body_equals_kernel(
        apply_penalties,
        step.logits(step.num_logits, VOCAB),
        step.expanded_idx_mapping,
        step.tokens(step.num_logits) % 5,  # a token drafted twice counts twice
        step.expanded_local_pos,
        sometimes(0.5 + step.uniform(MAX_REQS), 1.0),
        sometimes(step.uniform(MAX_REQS) - 0.5, 0.0),
        sometimes(step.uniform(MAX_REQS) - 0.5, 0.0),
        torch.randint(-(2**31), 2**31, (MAX_REQS, -(-VOCAB // 32)), generator=step.random).int(),
        (step.tokens(MAX_REQS, VOCAB) % 4).clamp_max(2) * (step.uniform(MAX_REQS, VOCAB) < 0.3),
    )


@given(steps())
def test_prompt_and_output_tokens_are_counted(step: Step) -> None:
    words = -(-VOCAB // 32)
    assert_body_equals_kernel(
        bincount,
        step.idx_mapping,
        step.all_token_ids,
        step.prompt_len,
        step.prefill_len,
        step.tokens(MAX_REQS, words),
        step.tokens(MAX_REQS, VOCAB),
        int(step.prefill_len.max()),
    )


@given(steps(), st.integers(2, 3))
def test_bad_words(step: Step, alphabet: int) -> None:
    """With two or three different tokens, prefixes match often, across the border of output and drafts too."""
    words_per_request = 6
    lengths = 1 + step.tokens(MAX_REQS, words_per_request) % 3
    offsets = torch.cat([torch.zeros(MAX_REQS, 1).int(), lengths.cumsum(1).int()], dim=1)
    assert_body_equals_kernel(
        apply_bad_words,
        step.logits(step.num_logits, VOCAB),
        step.expanded_idx_mapping,
        step.tokens(MAX_REQS, 3 * words_per_request) % alphabet,
        offsets,
        step.tokens(MAX_REQS) % (words_per_request + 1),
        step.all_token_ids % alphabet,
        step.prompt_len,
        step.total_len,
        step.tokens(step.num_logits) % alphabet,
        step.expanded_local_pos,
        words_per_request,
    )


@given(steps(), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
def test_thinking_budget(step: Step, start_len: int, natural_len: int, end_len: int) -> None:
    def launch(logits: torch.Tensor, *markers: torch.Tensor) -> torch.Tensor:
        # The marker cache is vLLM's own business: our bodies do without it.
        cache = [torch.full((MAX_REQS,), -1).int(), torch.full((MAX_REQS,), -1).int(), torch.zeros(MAX_REQS).int()]
        apply_thinking_budget(
            logits,
            step.idx_mapping,
            step.expanded_idx_mapping,
            budgets,
            tokens,
            step.total_len,
            drafts,
            step.expanded_local_pos,
            *cache,
            *markers,
        )
        return logits

    budgets = step.tokens(MAX_REQS) % 6 - 1
    tokens = step.all_token_ids % 4
    drafts = step.tokens(step.num_logits) % 4
    assert_body_equals_kernel(
        launch,
        step.logits(step.num_logits, VOCAB),
        ints([0, 1, 0][:start_len]),
        ints([2, 0][:natural_len]),
        ints([3, 2, 1][:end_len]),
    )


@given(steps(), st.sampled_from([torch.float32, torch.bfloat16]))
def test_grammar_mask(step: Step, dtype: torch.dtype) -> None:
    counts = step.cu_num_logits.diff().numpy()
    masked = [f"r{i}" for i in range(step.num_reqs) if i % 2 == 0]
    # One position more than the request has rows, as when drafts were dropped on the way.
    drafts = counts.copy()
    masks = (MAX_DRAFTS + 2) * len(masked) if HAS_FIXED_WIDTH else int((drafts[::2] + 1).sum())
    words = torch.randint(-(2**31), 2**31, (masks, -(-VOCAB // 32)), generator=step.random).int()

    class Batch:
        req_ids = [f"r{i}" for i in range(step.num_reqs)]  # noqa: RUF012
        cu_num_logits = step.cu_num_logits
        cu_num_logits_np = step.cu_num_logits.numpy()
        num_draft_tokens_per_req = drafts

    def launch(logits: torch.Tensor) -> torch.Tensor:
        widths = (MAX_DRAFTS + 2,) if HAS_FIXED_WIDTH else (MAX_LEN, 1)
        worker = StructuredOutputsWorker(64, VOCAB, torch.device("cpu"), *widths)
        worker.apply_grammar_bitmask(logits, Batch, masked, words.numpy().astype(np.int32))  # type: ignore[arg-type]
        return logits

    assert_body_equals_kernel(launch, step.logits(step.num_logits, VOCAB).to(dtype))


@given(steps(), st.sampled_from([torch.float32, torch.bfloat16]))
def test_grammar_mask_of_fixed_width(step: Step, dtype: torch.dtype) -> None:
    """Of any width; 0.32's launch knows nothing of it."""
    masked = torch.arange(0, step.num_reqs, 2)
    width = int(step.cu_num_logits.diff().max()) + 1
    places = (masked[:, None] * width + torch.arange(width)).flatten().int()
    words = torch.randint(-(2**31), 2**31, (len(places), -(-VOCAB // 32)), generator=step.random).int()

    def launch(logits: torch.Tensor) -> torch.Tensor:
        structured_outputs._apply_grammar_bitmask_kernel[len(places), 1](
            logits, logits.stride(0), places, step.cu_num_logits, words, words.stride(0), VOCAB,
            MASK_STRIDE=width, BLOCK_SIZE=128,
        )  # fmt: skip
        return logits

    assert_body_equals_kernel(launch, step.logits(step.num_logits, VOCAB).to(dtype))

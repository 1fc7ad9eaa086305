import torch
import vllm.v1.worker.gpu.spec_decode.rejection_sampler as rejection_sampler
import vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils as utils
from compare import assert_body_equals_kernel
from hypothesis import given
from hypothesis import strategies as st
from steps import MAX_DRAFTS, MAX_REQS, VOCAB, Step, steps

temperatures = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=MAX_REQS, max_size=MAX_REQS).map(torch.tensor)


@given(steps())
def test_drafts_and_positions_of_the_logits_rows(step: Step) -> None:
    starts = step.query_start_loc[1 : step.num_reqs + 1] - step.cu_num_logits.diff()
    rows = starts.repeat_interleave(step.cu_num_logits.diff()) + step.expanded_local_pos
    positions = torch.cat(
        [
            torch.arange(int(step.num_computed_tokens[slot]), int(step.num_computed_tokens[slot]) + length)
            for slot, length in zip(step.idx_mapping, step.query_start_loc.diff()[: step.num_reqs], strict=True)
        ]
    )
    assert_body_equals_kernel(
        rejection_sampler.gather_draft_sampled,
        step.tokens(step.num_tokens),
        positions,
        rows.long(),
        step.expanded_idx_mapping,
        step.expanded_local_pos,
        step.prefill_len,
    )


@given(steps())
def test_accepted_tokens_are_put_in_their_rows(step: Step) -> None:
    def launch(flat: torch.Tensor, sampled: torch.Tensor) -> None:
        rejection_sampler._flatten_sampled_kernel[(step.num_reqs,)](
            flat, sampled, sampled.stride(0), step.num_sampled, step.cu_num_logits, num_warps=1
        )

    assert_body_equals_kernel(
        launch,
        step.tokens(step.num_logits, dtype=torch.int64),
        step.tokens(step.num_reqs, MAX_DRAFTS + 1, dtype=torch.int64),
    )


def assert_same_tokens(
    step: Step, temperature: torch.Tensor, method: str, has_draft_logits: bool, fp64: bool, distance: float
) -> None:
    """Drafter and target agree more or less (`distance`); some drafts are placeholders that must be rejected."""
    common = step.logits(VOCAB, scale=2.0)
    draft_logits = None
    if has_draft_logits:
        draft_logits = common[: VOCAB - 2] + step.logits(MAX_REQS, MAX_DRAFTS, VOCAB - 2, scale=distance)
    target = common + step.logits(step.num_logits, VOCAB, scale=distance)
    target[:, 3] = float("-inf")
    mapping = step.expanded_idx_mapping
    target /= torch.where(temperature == 0, 1.0, temperature)[mapping][:, None]
    likely = torch.multinomial(
        common[: VOCAB - 2].softmax(-1), step.num_logits, replacement=True, generator=step.random
    )
    drafts = torch.where(step.uniform(step.num_logits) < 0.5, common[: VOCAB - 2].argmax(), likely).int()
    drafts[step.uniform(step.num_logits) < 0.1] = -1

    def launch(*args: torch.Tensor) -> list[torch.Tensor]:
        sampled, num_sampled = utils.rejection_sample(
            *args,
            MAX_DRAFTS,
            synthetic_conditional_rates=torch.tensor([0.9, 0.7, 0.5, 0.5]) if method == "synthetic" else None,
            use_fp64=fp64,
            use_block_verification=method == "block",
        )
        # Entries after the last token are not defined.
        defined = torch.arange(MAX_DRAFTS + 1) < num_sampled[:, None]
        return [sampled.masked_fill(~defined, 0), num_sampled]

    assert_body_equals_kernel(
        launch,
        target,
        draft_logits,
        drafts,
        step.cu_num_logits,
        step.tokens(step.num_logits, dtype=torch.int64) * 1000,
        step.idx_mapping,
        mapping,
        step.expanded_local_pos,
        temperature,
        step.seeds(),
    )


@given(
    steps(decoding_only=True),
    temperatures,
    st.sampled_from(["standard", "block", "synthetic"]),
    st.booleans(),
    st.booleans(),
    st.floats(0.0, 3.0),
)
def test_verified_tokens(
    step: Step, temperature: torch.Tensor, method: str, has_draft_logits: bool, fp64: bool, distance: float
) -> None:
    assert_same_tokens(step, temperature, method, has_draft_logits, fp64, distance)


@given(steps(decoding_only=True), st.booleans(), st.sampled_from([0.5, 1.0, 1.5]))
def test_drafts_that_are_verified_as_a_block(step: Step, has_draft_logits: bool, distance: float) -> None:
    """All of them drawn at random, so that chance decides at every place."""
    assert_same_tokens(step, torch.ones(MAX_REQS), "block", has_draft_logits, False, distance)

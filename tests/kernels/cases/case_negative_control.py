"""The comparison can fail: bodies with one plausible mistake each are told from the kernels."""

from collections.abc import Callable
from typing import Any

import case_drafting
import case_inputs
import case_logits
import case_logprobs
import case_prompt_embeds
import case_rejection
import case_rope
import case_sampling
import compare
import numpy as np
import pytest

from vllm_specext.cpu_runner import (
    drafting,
    inputs,
    logits_processing,
    logprobs,
    noise,
    prompt_embeds,
    rejection,
    rope,
    sampling,
)


def keeps_rejected_tokens(*args: Any, num_warps: int = 1) -> None:
    inputs.post_update(*args[:8], args[8] * 0, *args[9:])


def forgets_prompt_tails(*args: Any, **constants: int) -> None:
    inputs.combine_sampled_and_draft_tokens(*args[:5], args[5] * 0, *args[6:], **constants)


def ignores_rejected_rows(*args: Any, **constants: int) -> None:
    drafting.prepare_prefill_inputs(*args[:12], args[12] * 0, *args[13:], **constants)


def draws_drafts_like_verifications(*args: Any, **constants: Any) -> None:
    sampling.gumbel_sample(*args, **{**constants, "IS_DRAFTING": False})


def ignores_presence(*args: Any, **constants: int) -> None:
    logits_processing.penalties(*args[:7], args[7] * 0, *args[8:], **constants)


def counts_better_tokens_only(*args: Any, **constants: int) -> None:
    logprobs.ranks(*args, **constants)
    args[0].sub_(1)


def goes_on_where_the_prompt_ended(*args: Any, **constants: int) -> None:
    rope.prepare_rope_positions(*args[:5], args[5] * 0, *args[6:], **constants)


def verifies_with_the_next_position(*args: Any, **options: Any) -> Any:
    return rejection.rejection_sample(*args[:4], args[4] + 1, *args[5:], **options)


def embeds_tokens_of_the_prompt_too(self: Any, *args: Any) -> None:
    self.gpu_tensors = {request: (embeds, None) for request, (embeds, _) in self.gpu_tensors.items()}
    prompt_embeds.apply(self, *args)


@pytest.mark.parametrize(
    ("case", "kernel", "wrong"),
    [
        (case_inputs.test_sampled_tokens_are_appended, "_post_update_kernel", keeps_rejected_tokens),
        (
            case_inputs.test_sampled_and_drafted_tokens_become_inputs,
            "_combine_sampled_and_draft_tokens_kernel",
            forgets_prompt_tails,
        ),
        (
            case_drafting.test_accepted_rows_feed_the_drafter,
            "target_dependent_ar.speculator._prepare_prefill_inputs_kernel",
            ignores_rejected_rows,
        ),
        (
            case_sampling.test_drafted_tokens_and_their_logits_are_kept,
            "_gumbel_sample_kernel",
            draws_drafts_like_verifications,
        ),
        (
            case_prompt_embeds.test_given_embeddings_reach_their_rows,
            "PromptEmbedsState.apply",
            embeds_tokens_of_the_prompt_too,
        ),
        (case_logits.test_penalties, "_penalties_kernel", ignores_presence),
        (case_logprobs.test_reported_tokens_and_ranks, "_ranks_kernel", counts_better_tokens_only),
        (
            case_rope.test_positions_on_several_axes,
            "_prepare_rope_positions_kernel",
            goes_on_where_the_prompt_ended,
        ),
        (case_rejection.test_verified_tokens, "rejection_sample", verifies_with_the_next_position),
    ],
    ids=lambda value: value.__name__ if callable(value) and not value.__name__.startswith("test_") else "",
)
def test_a_wrong_body_is_caught(case: Callable, kernel: str, wrong: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "WRONG", {kernel: wrong})
    with pytest.raises(AssertionError):
        case()


def test_noise_of_the_wrong_position_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    gumbel = noise.gumbel
    monkeypatch.setattr(noise, "gumbel", lambda seed, pos, *rest, **kw: gumbel(seed, pos ^ np.int64(1), *rest, **kw))
    with pytest.raises(AssertionError):
        case_sampling.test_noise_of_many_seeds_and_positions(False)

import pytest
import torch
import vllm.v1.worker.gpu.sample.gumbel as gumbel
from compare import assert_body_equals_kernel, bodies
from hypothesis import given
from hypothesis import strategies as st
from steps import MAX_DRAFTS, MAX_REQS, VOCAB, Step, steps
from vllm.v1.worker.gpu.sample.min_p import apply_min_p

temperatures = st.lists(st.sampled_from([0.0, 0.3, 1.0, 1.7]), min_size=MAX_REQS, max_size=MAX_REQS).map(torch.tensor)
# Two vocabulary blocks of the kernel, and one.
vocab_sizes = st.sampled_from([VOCAB, 1300])


@given(steps(), temperatures)
def test_temperature(step: Step, temperature: torch.Tensor) -> None:
    logits = step.logits(step.num_logits, VOCAB)
    assert_body_equals_kernel(gumbel.apply_temperature, logits, step.expanded_idx_mapping, temperature)


@given(steps(), vocab_sizes)
def test_min_p(step: Step, vocab_size: int) -> None:
    min_p = step.uniform(MAX_REQS) * (step.uniform(MAX_REQS) > 0.3)
    assert_body_equals_kernel(apply_min_p, step.logits(step.num_logits, vocab_size), step.expanded_idx_mapping, min_p)


@given(
    steps(), temperatures, vocab_sizes, st.booleans(), st.booleans(), st.sampled_from([torch.float32, torch.bfloat16])
)
def test_drawn_tokens(
    step: Step, temperature: torch.Tensor, vocab_size: int, scale: bool, fp64: bool, dtype: torch.dtype
) -> None:
    """The logits are nearly flat, so that the noise decides."""
    logits = step.logits(step.num_logits, vocab_size, scale=0.3).to(dtype)
    logits[:, 1::7] = float("-inf")  # as top-k and top-p leave them
    mapping = step.expanded_idx_mapping
    mapping[-1] = -1  # padding row
    pos = step.tokens(step.num_logits, dtype=torch.int64) * 1000
    assert_body_equals_kernel(
        lambda *args: gumbel.gumbel_sample(*args, use_fp64=fp64),
        logits,
        mapping,
        temperature,
        step.seeds(),
        pos,
        scale,
        False,
    )


@given(steps(drafts=False), temperatures, st.booleans(), st.booleans())
def test_drafted_tokens_and_their_logits_are_kept(
    step: Step, temperature: torch.Tensor, per_token: bool, keeps: bool
) -> None:
    """Without logits to keep, the place in the draft counts for nothing."""
    logits = step.logits(step.num_reqs, VOCAB, scale=0.3)
    mapping = step.idx_mapping.clone()
    mapping[-1] = -1
    column = torch.randint(MAX_DRAFTS, (step.num_reqs,) if per_token else (), generator=step.random)
    assert_body_equals_kernel(
        lambda *args: gumbel.gumbel_sample(
            *args[:5], apply_temperature=True, is_drafting=True, logits_cache=args[5], logits_cache_col=args[6]
        ),
        logits,
        mapping,
        temperature,
        step.seeds(),
        step.tokens(step.num_reqs, dtype=torch.int64),
        step.logits(MAX_REQS, MAX_DRAFTS, VOCAB + 3) if keeps else None,
        column,
    )


@pytest.mark.parametrize("fp64", [False, True])
def test_noise_of_many_seeds_and_positions(fp64: bool) -> None:
    """Equal logits: the drawn token is the largest of 300 noise values, 64 times."""
    random = torch.Generator().manual_seed(0)
    info = torch.iinfo(torch.int64)
    seeds = torch.randint(info.min, info.max, (64,), generator=random)
    seeds[:3] = torch.tensor([0, -1, 2**40])
    pos = torch.randint(2**33, (64,), generator=random)
    pos[:3] = torch.tensor([0, 1, 2**31])

    def sample() -> torch.Tensor:
        rows = torch.arange(64)
        return gumbel.gumbel_sample(torch.zeros(64, 300), rows, torch.ones(64), seeds, pos, False, False, use_fp64=fp64)

    expected = sample()
    assert len(expected.unique()) > 40
    with bodies():
        assert sample().tolist() == expected.tolist()

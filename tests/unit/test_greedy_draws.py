"""One argmax where vLLM's sampler would give the same: for which batches, and that it is the same."""

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401 - on a CPU it has to come before the V2 runner
from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.config.reasoning import ReasoningConfig
from vllm.platforms import current_platform
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.states import RequestState

from vllm_specext.cpu_runner.install import install
from vllm_specext.engine.verification import sampler as verification
from vllm_specext.engine.verification import scoring
from vllm_specext.engine.verification.greedy import likeliest, sample_greedily
from vllm_specext.engine.verification.sampler import TargetOnlyVerifier
from vllm_specext.engine.verification.scoring import DrawnDraftVerifier

VOCABULARY = 2500
"""Three of the blocks that the sampler's kernel works on."""
SLOTS = 8
DRAFTS = 4
ON_CPU = current_platform.is_cpu()
DEVICE = torch.device("cpu" if ON_CPU else "cuda")
GREEDY = SamplingParams(temperature=0.0)

STOCK = inspect.unwrap(Sampler.sample)
"""Also where another test of this process has installed the plug-in."""


@pytest.fixture(scope="module", autouse=True)
def bodies() -> None:
    if ON_CPU:
        install()


class OnlyEven(LogitsProcessor):
    """A processor of the user's, which looks at the requests that ask for it."""

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        return bool((sampling_params.extra_args or {}).get("even"))

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        return logits


@pytest.fixture
def sampler() -> Sampler:
    """With a greedy request in every slot."""
    config = VllmConfig()
    config.reasoning_config = ReasoningConfig()
    config.reasoning_config._reasoning_start_token_ids = [1]
    config.reasoning_config._reasoning_end_token_ids = [2]
    config.reasoning_config._natural_reasoning_end_token_ids = [2]
    states = RequestState(SLOTS, 64, 64, DRAFTS, VOCABULARY, DEVICE)
    made = Sampler(config, SLOTS, VOCABULARY, DEVICE, states, custom_logits_processors=(OnlyEven(config, states),))  # type: ignore[arg-type]
    for slot in range(SLOTS):
        made.add_request(slot, GREEDY)
    made.apply_staged_writes()
    return made


def greedy(**wishes: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, **wishes)


WISHES = {
    "noise": SamplingParams(temperature=1.0, seed=1),
    "temperature": SamplingParams(temperature=0.01, seed=1),
    "repetition": greedy(repetition_penalty=1.1),
    "frequency": greedy(frequency_penalty=0.1),
    "presence": greedy(presence_penalty=-0.1),
    "bias": greedy(logit_bias={3: 1.0}),
    "allowed": greedy(allowed_token_ids=[3, 4]),
    "bad words": greedy(_bad_words_token_ids=[[3, 4]]),
    "minimum": greedy(min_tokens=2, stop_token_ids=[5]),
    "thinking": greedy(thinking_token_budget=5),
    "processor": greedy(extra_args={"even": True}),
}
NO_WISHES = {
    "nothing": GREEDY,
    "seed": greedy(seed=3),
    "logprobs": greedy(logprobs=2),
    "listed": greedy(logprob_token_ids=[3]),
    "prompt": greedy(prompt_logprobs=1),
    "nucleus": greedy(top_k=5, top_p=0.5, min_p=0.1),
    "stop": greedy(stop_token_ids=[5], stop=["x"], detokenize=True),
    "minimum without an end": greedy(min_tokens=2, ignore_eos=True),
    "grammar": greedy(structured_outputs=StructuredOutputsParams(regex="a+")),
}


@pytest.mark.parametrize("wish", WISHES)
def test_a_batch_with_a_wish_goes_to_the_sampler(sampler: Sampler, wish: str) -> None:
    logits = torch.randn(3, VOCABULARY, device=DEVICE)
    sampler.add_request(5, WISHES[wish])
    assert likeliest(sampler, logits, np.array([0, 5, 7])) is None
    assert likeliest(sampler, logits, np.array([0, 6, 7])) is not None
    sampler.add_request(5, GREEDY)  # another request gets the slot
    assert likeliest(sampler, logits, np.array([0, 5, 7])) is not None


@pytest.mark.parametrize("wish", NO_WISHES)
def test_what_changes_no_logits_is_no_wish(sampler: Sampler, wish: str) -> None:
    logits = torch.randn(3, VOCABULARY, device=DEVICE)
    sampler.add_request(5, NO_WISHES[wish])
    assert likeliest(sampler, logits, np.array([0, 5, 7])) is not None


def test_a_sampler_that_draws_in_another_way_is_left_alone(sampler: Sampler) -> None:
    class Other(Sampler):
        pass

    sampler.__class__ = Other
    assert likeliest(sampler, torch.randn(1, VOCABULARY, device=DEVICE), np.array([0])) is None


def logits_of(kind: str, dtype: torch.dtype) -> Tensor:
    """``[40, V]`` for the cases in which an argmax could go another way."""
    generator = torch.Generator().manual_seed(11)
    logits = torch.randn(40, VOCABULARY, generator=generator)
    if kind == "ties":
        logits = torch.randint(0, 3, logits.shape, generator=generator).float()
    elif kind == "almost ties":  # which bfloat16 cannot tell apart
        logits = 8 + 0.02 * logits
    elif kind == "masked":
        logits[torch.rand(logits.shape, generator=generator) < 0.999] = -torch.inf
    elif kind == "all masked":
        logits[::2] = -torch.inf
    elif kind == "infinite":
        logits[torch.rand(logits.shape, generator=generator) < 0.01] = torch.inf
    elif kind == "NaN":
        logits[torch.rand(logits.shape, generator=generator) < 0.01] = torch.nan
    return logits.to(dtype).to(DEVICE)


def drawn_by_vllm(sampler: Sampler, logits: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    places = torch.arange(len(slots), device=DEVICE)
    return STOCK(sampler, logits, slots, slots, slots.cpu().numpy(), places, places, places * 0, np.array([1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["random", "ties", "almost ties", "masked", "all masked", "infinite", "NaN"])
def test_the_argmax_is_what_vllms_sampler_draws(sampler: Sampler, kind: str, dtype: torch.dtype) -> None:
    if kind == "NaN" and not ON_CPU:
        pytest.skip("a kernel's maximum of a row with a NaN is whatever the comparison left")
    logits = logits_of(kind, dtype)
    untouched = logits.clone()
    slots = torch.arange(40, dtype=torch.int32, device=DEVICE) % SLOTS
    with torch.inference_mode():
        drawn = likeliest(sampler, logits, slots.cpu().numpy())
        by_vllm, processed = drawn_by_vllm(sampler, logits, slots)
    assert drawn is not None
    assert drawn.dtype == by_vllm.dtype == torch.int64
    assert drawn.tolist() == by_vllm.tolist()
    assert processed is logits
    assert torch.equal(logits.nan_to_num(), untouched.nan_to_num())
    # No row may be compared with itself alone: several tokens are drawn.
    assert len(set(drawn.tolist())) > 1


@pytest.mark.parametrize("strides", ["rows", "columns"])
def test_a_part_of_wider_logits_needs_no_copy(sampler: Sampler, strides: str) -> None:
    """As where the vocabulary is padded, and where a chunk of the rows is verified."""
    wide = torch.randn(80, VOCABULARY + 60, device=DEVICE)
    logits = wide[::2, :VOCABULARY] if strides == "rows" else wide.T[:40, :20]
    drawn = likeliest(sampler, logits, np.arange(SLOTS))
    assert drawn is not None
    assert drawn.tolist() == logits.contiguous().argmax(dim=-1).tolist()


def test_other_batches_are_sampled_as_before(sampler: Sampler) -> None:
    calls = []

    def original(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        calls.append((args, kwargs))
        return STOCK(*args, **kwargs)

    sample = sample_greedily(original)
    logits = torch.randn(3, VOCABULARY, device=DEVICE)
    slots = torch.tensor([0, 5, 7], device=DEVICE)
    rest = (torch.arange(3, device=DEVICE), slots, slots * 0, np.array([9, 9, 9]))
    drawn, processed = sample(sampler, logits, slots, slots, slots.cpu().numpy(), *rest, return_logprobs=True)
    assert calls == []
    assert processed is logits
    sampler.add_request(5, SamplingParams(temperature=2.0, seed=1))
    sampler.apply_staged_writes()
    with_noise, processed = sample(sampler, logits, slots, slots, slots.cpu().numpy(), *rest, return_logprobs=True)
    assert [kwargs for _, kwargs in calls] == [{"return_logprobs": True}]
    assert calls[0][0][0] is sampler
    assert calls[0][0][-1] is rest[-1]
    assert processed is not logits
    assert with_noise[[0, 2]].tolist() == drawn[[0, 2]].tolist()


Verifier = type[TargetOnlyVerifier] | type[DrawnDraftVerifier]


def verify(kind: Verifier, sampler: Sampler, logits: Tensor, drafted: Tensor, method: str = "standard") -> Any:
    """The ``_verify`` of requests with 5, 1, 3 and 5 rows."""
    config: Any = SimpleNamespace(
        num_speculative_tokens=DRAFTS,
        enable_adaptive_verification=False,
        rejection_sample_method=method,
        synthetic_acceptance_rates=[0.9, 0.8, 0.7, 0.6],
        fly_entropy_threshold=0.3,
        fly_entropy_top_k=3,
    )
    verifier = kind(sampler, config, DEVICE)
    verifier._logprobs_dims = None
    lengths = torch.tensor([5, 1, 3, 5], device=DEVICE)
    starts = torch.tensor([0, 5, 6, 9, 14], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([0, 5, 7, 2], dtype=torch.int32, device=DEVICE)
    rows = torch.arange(14, device=DEVICE)
    local = (rows - starts[:-1].repeat_interleave(lengths)).int()
    own = slots.repeat_interleave(lengths)
    args = (starts, slots, slots.cpu().numpy(), own, local, np.full(4, 9), drafted)
    with torch.inference_mode():
        processed, emitted, counts = verifier._verify(logits, None, drafted, rows, *args)
    assert processed is logits
    counted = [row[:count] for row, count in zip(emitted.tolist(), counts.tolist(), strict=True)]
    chosen = verifier._chosen.tolist()
    at_rows = [chosen[start : start + len(row)] for start, row in zip(starts.tolist(), counted, strict=False)]
    assert verifier._slots is own
    return counted, at_rows, (emitted.dtype, counts.dtype, emitted.shape)


@pytest.mark.parametrize("kind", [TargetOnlyVerifier, DrawnDraftVerifier])
@pytest.mark.parametrize("seed", range(8))
def test_verification_by_argmax_is_that_by_the_sampler(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch, kind: Verifier, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(14, VOCABULARY, generator=generator).to(DEVICE)
    drafted = torch.randint(0, VOCABULARY, (14,), generator=generator, dtype=torch.int32).to(DEVICE)
    right = torch.rand(14, generator=generator) < 0.8
    right[:3] = True
    drafted[1:] = torch.where(right[1:].to(DEVICE), logits.argmax(dim=-1)[:-1].int(), drafted[1:])
    drafted[3 if seed % 2 else 12] = -1  # a placeholder
    short = verify(kind, sampler, logits, drafted)
    asked = []
    for module in (verification, scoring):
        monkeypatch.setattr(module, "likeliest", lambda *args: asked.append(args))
    assert verify(kind, sampler, logits, drafted) == short
    assert len(asked) == 1
    counted, at_rows, _ = short
    assert counted == at_rows
    assert any(len(row) > 2 for row in counted)
    # Negative control: another drafted token that is right, or wrong, changes what is emitted.
    first = 0 if len(counted[0]) < 5 else 3
    changed = drafted.clone()
    row = len(counted[first]) if len(counted[first]) < 5 else 1
    at = (0, 5, 6, 9)[first] + row
    changed[at] = logits[at - 1].argmax().int() if changed[at] != logits[at - 1].argmax() else -1
    monkeypatch.undo()
    assert verify(kind, sampler, logits, changed)[0] != counted


def test_synthetic_acceptance_asks_nobody_for_the_likeliest_token(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "likeliest", lambda *args: pytest.fail("asked"))
    logits, drafted = torch.randn(14, VOCABULARY, device=DEVICE), torch.zeros(14, dtype=torch.int32, device=DEVICE)
    verify(DrawnDraftVerifier, sampler, logits, drafted, method="synthetic")

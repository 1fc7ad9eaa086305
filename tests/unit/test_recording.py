"""Passes that are recorded operation by operation and replayed on the same memory."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from vllm_specext.kernels.recording import WHOLE, Recording

Pass = Callable[[], Tensor]


def record(run: Pass) -> tuple[Recording, Tensor]:
    recording = Recording()
    with torch.inference_mode(), recording.taking():
        result = run()
    return recording, result


@torch.inference_mode()
def replay(recording: Recording) -> None:
    recording.replay()


def replayed_equals_run(run: Pass, inputs: list[Tensor]) -> None:
    """On new numbers in the inputs, several times; the inputs may be changed by the pass."""
    recording, result = record(run)
    for seed in range(3):
        torch.manual_seed(seed)
        given = [torch.randn_like(tensor) if tensor.is_floating_point() else tensor.random_(7) for tensor in inputs]
        for tensor, values in zip(inputs, given, strict=True):
            tensor.copy_(values)
        replay(recording)
        replayed = result.clone(), [tensor.clone() for tensor in inputs]
        for tensor, values in zip(inputs, given, strict=True):
            tensor.copy_(values)
        with torch.inference_mode():
            expected = run()
        assert torch.equal(replayed[0], expected)
        for ours, theirs in zip(replayed[1], inputs, strict=True):
            assert torch.equal(ours, theirs)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 16)


def test_a_module_is_replayed(x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.LayerNorm(32), nn.Linear(32, 5), nn.Softmax(dim=-1))
    replayed_equals_run(lambda: model(x), [x])


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.view(3, 32).T.contiguous().sum(dim=0),
        lambda x: torch.cat((x[:2], x[4:])).sort(dim=-1, descending=True)[0],
        lambda x: x.topk(3, dim=-1).values,
        lambda x: x.topk(3, dim=-1).indices.float(),
        lambda x: x.log_softmax(dim=-1).clone().add_(1).mul(2),
        lambda x: torch.where(x > 0, x, 0.5).cumsum(dim=0),
        lambda x: x.to(torch.bfloat16).float(),
        lambda x: x.masked_fill(x < 0, -1.0).amax(dim=1),
        lambda x: x.gather(1, torch.arange(5).expand(6, 5)),
        lambda x: x[torch.tensor([3, 1])],
        lambda x: nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
        lambda x: torch.zeros_like(x).index_add_(0, torch.arange(6), x),
        lambda x: x.split(4, dim=-1)[2] * x.unbind(dim=-1)[0][:, None],
        lambda x: torch.empty(6, 16).copy_(x) + torch.ones(16),
    ],
)
def test_operations_of_every_sort_are_replayed(run: Callable[[Tensor], Tensor], x: Tensor) -> None:
    replayed_equals_run(lambda: run(x), [x])


def test_inputs_that_the_pass_changes_are_changed_again(x: Tensor) -> None:
    ids = torch.zeros(6, dtype=torch.int64)

    def run() -> Tensor:
        best = x.argmax(dim=-1)
        ids.copy_(best)
        x[:, 0] += 1
        x[1:].mul_(2)
        return ids + best

    replayed_equals_run(run, [x])


def test_what_reads_no_input_is_computed_once() -> None:
    x, calls = torch.randn(8), []
    library = torch.library.Library("specext_test_constants", "FRAGMENT")
    library.define("noted(Tensor x) -> Tensor")
    library.impl("noted", lambda x: (calls.append(len(x)), x + 1)[1], "CPU")
    noted = torch.ops.specext_test_constants.noted

    recording, result = record(lambda: x + noted(torch.arange(8.0)))
    assert calls == [8]
    x.fill_(2)
    replay(recording)
    assert calls == [8]
    assert result.tolist() == [x + 3 for x in range(8)]


def test_results_that_are_changed_later_are_computed_again(x: Tensor) -> None:
    def run() -> Tensor:
        counts = torch.zeros(6)
        counts += x[:, 0]
        return counts

    replayed_equals_run(run, [x])


def test_random_numbers_are_drawn_again(x: Tensor) -> None:
    recording, result = record(lambda: torch.rand(4) + x[:4, 0])
    first = result.clone()
    replay(recording)
    assert not torch.equal(first, result)


def test_operators_of_a_library_are_taken_whole() -> None:
    """An operator without a decomposition of its own, whose implementation is not torch's."""
    library = torch.library.Library("specext_test_whole", "FRAGMENT")
    library.define("twice(Tensor x, Tensor(a!) out) -> ()")
    library.impl("twice", lambda x, out: (out.numpy().__setitem__(slice(None), 2 * x.numpy()), None)[1], "CPU")
    twice = torch.ops.specext_test_whole.twice
    x, out = torch.randn(5), torch.zeros(5)

    def run() -> Tensor:
        twice(x, out)
        return out + 1

    replayed_equals_run(run, [x])


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x[0, 0] > 0 else -x,
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x * int(torch.equal(x, x)),
        lambda x: x * len(x.sum(dim=1).tolist()),
        lambda x: x * float(x.numpy().sum()),
        lambda x: x.repeat_interleave(x[:, 0].int().clamp(min=1), dim=0),
    ],
)
def test_what_python_has_to_see_is_refused(run: Callable[[Tensor], Tensor], x: Tensor) -> None:
    with pytest.raises(RuntimeError, match="cannot be recorded: Python sees its result"):
        record(lambda: run(x))


def test_what_python_worked_out_stays_as_it_was(x: Tensor) -> None:
    """The negative control: a pass that reads numbers of Python is not what a replay repeats."""
    factor = [2.0]
    recording, result = record(lambda: x * factor[0])
    factor[0] = 3.0
    replay(recording)
    assert torch.equal(result, 2 * x)


def test_pieces_are_left_out(x: Tensor) -> None:
    recording = Recording()
    stream = torch.zeros_like(x)
    with recording.taking():
        stream.copy_(x)
        for piece in ("first", "second"):
            recording.cut(piece)
            stream += {"first": 1.0, "second": 10.0}[piece] * x
        recording.cut("end")
        result = stream * 2
    x.fill_(1)
    for without, expected in (((), 24), (("first",), 22), (("second",), 4), (("first", "second"), 2)):
        recording.replay(without)
        assert result.unique().tolist() == [expected]
    recording.replay((WHOLE, "first", "end"))
    assert stream.unique().tolist() == [11]  # onto what was there
    assert result.unique().tolist() == [2]


def test_the_memory_of_results_is_told(x: Tensor) -> None:
    recording, _ = record(lambda: (x + 1).view(2, -1).float() * 2)
    assert recording.bytes == 2 * 6 * 16 * 4

import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from tests import forks
from vllm_specext.engine.verification.rank_check import VARIABLE, RankCheck, fingerprint, steps_between


def test_a_fingerprint_depends_on_every_value_and_on_its_place() -> None:
    tokens, parents = torch.arange(12).view(3, 4), torch.zeros(3, 4, dtype=torch.int32)
    seen = {int(fingerprint((tokens, parents)))}
    for values in (tokens, parents):
        for place in range(12):
            changed = values.clone()
            changed.view(-1)[place] += 1
            pair = (changed, parents) if values is tokens else (tokens, changed)
            seen.add(int(fingerprint(pair)))
    seen.add(int(fingerprint((tokens.flip(0), parents))))
    seen.add(int(fingerprint((parents, tokens))))
    assert len(seen) == 27
    assert all(0 <= value < 2**62 for value in seen)


def _rank(rank: int, file: str, differs_at: int | None, steps: int, result: "multiprocessing.Queue[tuple]") -> None:
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    check = RankCheck(SimpleNamespace(world_size=2, device_group=distributed.group.WORLD), steps)
    raised = None
    for step in range(12):
        drafted = torch.full((4, 6), step)
        if rank == 1 and differs_at is not None and step >= differs_at:
            drafted[2, 3] += 1
        try:
            check.step(drafted)
        except RuntimeError as error:
            raised = step
            assert "disagree" in str(error)  # noqa: PT017  # in another process
            break
    result.put((rank, raised))


@pytest.mark.parametrize(
    ("differs_at", "steps", "raised"), [(None, 1, None), (0, 1, 1), (5, 1, 6), (5, 4, 11)], ids=str
)
def test_all_ranks_stop_at_the_comparison_after_one_that_differed(
    tmp_path: Path, differs_at: int | None, steps: int, raised: int | None
) -> None:
    context = forks.context()
    result = context.Queue()
    file = str(tmp_path / "store")
    ranks = [context.Process(target=_rank, args=(rank, file, differs_at, steps, result)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    told = dict(result.get(timeout=60) for _ in ranks)
    for rank in ranks:
        rank.join(30)
    assert told == {0: raised, 1: raised}


def test_one_rank_compares_nothing() -> None:
    RankCheck(SimpleNamespace(world_size=1), 1).step(torch.zeros(3))


def test_how_often_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    assert steps_between() == 1
    monkeypatch.setenv(VARIABLE, "often")
    with pytest.raises(RuntimeError, match=f"{VARIABLE} is 'often'"):
        steps_between()

import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from tests import forks
from vllm_specext.engine.verification.rank_check import VARIABLE, RankCheck, fingerprint, kept_by, steps_between
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.engine.verification.tree_steps import TreeSteps
from vllm_specext.tree.budget import TreeShape


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


def test_trees_of_another_shape_are_another_fingerprint() -> None:
    states = SimpleNamespace(draft_tokens=torch.zeros(2, 6), last_sampled_tokens=torch.zeros(2, 1))
    trees = TreeStates(TreeShape(6, 3, 2), max_num_reqs=2, max_model_len=32, device=torch.device("cpu"))
    runner = SimpleNamespace(req_states=states, model_state=SimpleNamespace(steps=TreeSteps(trees)))
    before = int(fingerprint(kept_by(runner)))
    assert int(fingerprint(kept_by(runner))) == before
    trees.topology.parents[1, 4] = 1
    assert int(fingerprint(kept_by(runner))) != before
    chains = SimpleNamespace(req_states=states, model_state=SimpleNamespace())
    assert len(kept_by(chains)) == 2


def test_one_rank_compares_nothing() -> None:
    RankCheck(SimpleNamespace(world_size=1), 1).step(torch.zeros(3))


def test_how_often_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    assert steps_between() == 1
    monkeypatch.setenv(VARIABLE, "often")
    with pytest.raises(RuntimeError, match=f"{VARIABLE} is 'often'"):
        steps_between()

"""The choice of the number of drafted tokens, on simulated engines whose best choice is known."""

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.simulated_drafts import simulation as draft_simulation
from benchmarks.simulated_drafts.simulation import Acceptance, Cost, Drafts, Simulation, changing, constant
from vllm_specext.tree import draft_choice, draft_load
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.draft_choice import DraftChoice
from vllm_specext.tree.draft_size import NOTHING, DraftSize

STEPS = 2000
TREE = TreeShape(59, 6, 10)


def chain_cost(requests: int, verified: DraftSize, drafted: DraftSize) -> float:
    """Of a CPU: rows are dear, and so are passes of the drafter."""
    return 1 + 0.02 * requests + 0.01 * requests * verified.nodes + 0.22 * drafted.nodes


def tree_cost(requests: int, verified: DraftSize, drafted: DraftSize) -> float:
    """Of a GPU: rows are cheap for few requests."""
    return 1 + 0.003 * requests * (verified.nodes + 1) + 0.05 * drafted.levels + 0.001 * requests * drafted.nodes


def dear_cost(requests: int, verified: DraftSize, drafted: DraftSize) -> float:
    """No draft is worth its drafter."""
    return 1 + 0.02 * requests * (1 + verified.nodes) + 1.1 * drafted.nodes


def chains(*numbers: int) -> list[DraftSize]:
    return [DraftSize(number, number) for number in numbers]


def simulated(acceptance: Acceptance, cost: Cost, requests: int, tree: TreeShape | None, seed: int = 0) -> Simulation:
    drafts = Drafts(8 if tree is None else tree.nodes, acceptance, tree, any_depth=tree is not None)
    return Simulation(drafts, cost, lambda step: requests, seed, slope=0.25, first=4)


def best(simulation: Simulation, requests: int) -> float:
    return max(simulation.fixed(size, 50).speed(2) for size in simulation.sizes(requests))


@pytest.mark.parametrize("requests", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("rate", [0.5, 0.75, 0.9])
@pytest.mark.parametrize(("cost", "tree"), [(chain_cost, None), (tree_cost, TREE)], ids=["chain", "tree"])
def test_the_best_fixed_size_is_reached(cost: Cost, tree: TreeShape | None, rate: float, requests: int) -> None:
    simulation = simulated(constant(rate), cost, requests, tree, seed=requests)
    speed = simulation.chosen(STEPS).speed(300)
    assert speed > 0.97 * best(simulation, requests)
    assert speed > 0.97 * simulation.fixed(NOTHING, 50).speed()


def levels_cost(requests: int, verified: DraftSize, drafted: DraftSize) -> float:
    """Of a GPU with one request: a level of the draft takes a tenth of a step, rows hardly anything."""
    return 1 + 0.003 * requests * verified.nodes + 0.12 * drafted.levels


@pytest.mark.parametrize(("rate", "levels"), [(0.4, 3), (0.95, 6)])
@pytest.mark.parametrize("seed", range(3))
def test_a_tree_is_as_deep_as_pays(rate: float, levels: int, seed: int) -> None:
    simulation = simulated(constant(rate), levels_cost, 1, TREE, seed)
    outcome = simulation.chosen(STEPS)
    assert outcome.usual.levels == levels
    assert outcome.speed(300) > 0.96 * best(simulation, 1)


def test_trees_of_one_depth_are_slower_where_little_is_accepted() -> None:
    """The control of the test above."""
    simulation = simulated(constant(0.45, fall=0.9), levels_cost, 1, TREE)
    speed = simulation.chosen(STEPS).speed(300)
    simulation.drafts = replace(simulation.drafts, any_depth=False)
    assert speed > 1.1 * simulation.chosen(STEPS).speed(300)


@pytest.mark.parametrize("requests", [1, 4, 32])
@pytest.mark.parametrize("rate", [0.1, 0.4, 0.9])
def test_drafts_that_never_pay_cost_hardly_anything(rate: float, requests: int) -> None:
    simulation = simulated(constant(rate), dear_cost, requests, None)
    outcome, plain = simulation.chosen(STEPS), simulation.fixed(NOTHING, 10).speed()
    assert outcome.usual == NOTHING
    assert outcome.speed() > 0.97 * plain
    assert outcome.speed(500) > 0.975 * plain
    # What the budget is for: drafts are tried again, and what was learned is forgotten for nothing.
    assert 0 < sum(size != NOTHING for size in outcome.drafted) < 0.15 * STEPS


def speeds_with_slow_changes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Relative to plain decoding, where nothing pays, but not by far, and where a change of size is slow at first, as
    if passes were compiled or recorded anew, several times over."""

    def cost(requests: int, verified: DraftSize, drafted: DraftSize) -> float:
        return 1 + 0.02 * requests * (1 + verified.nodes) + 0.85 * drafted.nodes

    monkeypatch.setattr(draft_simulation, "FIRST_TIME", 10.0)
    speeds = []
    for seed in range(20):
        simulation = simulated(constant(0.7), cost, 1, None, seed)
        simulation.slow_changes = 4
        speeds.append(simulation.chosen(STEPS).speed(600) / simulation.fixed(NOTHING, 10).speed())
    return speeds


def test_plain_decoding_that_is_slow_whenever_it_begins_again_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert min(speeds_with_slow_changes(monkeypatch)) > 0.97


def test_a_choice_that_never_looks_back_gives_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(draft_choice, "RECHECK", 10**6)
    monkeypatch.setattr(draft_choice, "MOST_RECHECK", 10**6)
    assert min(speeds_with_slow_changes(monkeypatch)) < 0.95


def test_the_budget_bounds_what_trying_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a choice that hopes for everything from every size."""
    monkeypatch.setattr(draft_load.DraftLoad, "hope", lambda *others: 1e9)
    lost = {}
    for budget in (draft_choice.BUDGET, 0.2):
        monkeypatch.setattr(draft_choice, "BUDGET", budget)
        simulation = simulated(constant(0.4), dear_cost, 4, None)
        lost[budget] = 1 - simulation.chosen(STEPS).speed(500) / simulation.fixed(NOTHING, 10).speed()
    assert lost[0.01] < 0.02
    assert lost[0.2] > 0.08


@pytest.mark.parametrize("requests", [1, 4, 16])
@pytest.mark.parametrize(("before", "after"), [(0.2, 0.9), (0.9, 0.2)], ids=["prose to code", "code to prose"])
@pytest.mark.parametrize(("cost", "tree"), [(chain_cost, None), (tree_cost, TREE)], ids=["chain", "tree"])
def test_another_text_is_followed_within_200_steps(
    cost: Cost, tree: TreeShape | None, before: float, after: float, requests: int
) -> None:
    change, speeds = 1500, []
    goal = best(simulated(constant(after), cost, requests, tree), requests)
    for seed in range(5):
        text = changing({0: before, change: after})
        outcome = simulated(text, cost, requests, tree, seed).chosen(change + 500)
        speeds.append(outcome.speed(change + 200) / goal)
    assert sum(speeds) / len(speeds) > 0.95


def test_a_choice_that_forgets_nothing_does_not_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    from vllm_specext.tree import acceptance

    monkeypatch.setattr(acceptance, "SHORT", 10**6)
    monkeypatch.setattr(acceptance, "LONG", 10**7)
    change = 1500
    goal = best(simulated(constant(0.2), chain_cost, 4, None), 4)
    outcome = simulated(changing({0: 0.9, change: 0.2}), chain_cost, 4, None).chosen(change + 500)
    assert outcome.speed(change + 200) < 0.95 * goal


def test_loads_learn_for_themselves_and_begin_with_what_the_next_one_knows() -> None:
    """Drafts pay at one request and not at 32; the load goes up and down."""

    def cost(requests: int, verified: DraftSize, drafted: DraftSize) -> float:
        return 1 + 0.1 * drafted.nodes + 0.1 * requests * (1 + verified.nodes)

    simulation = simulated(constant(0.7), cost, 1, None)
    simulation.load = lambda step: 1 if step // 400 % 2 == 0 else 32
    outcome = simulation.chosen(4000)
    last = {requests: Counter[int]() for requests in (1, 32)}
    for step in range(2000, 4000):
        last[simulation.load(step)][outcome.drafted[step].nodes] += 1
    assert last[1].most_common(1)[0][0] >= 3
    assert last[32].most_common(1)[0][0] == 0
    # At its first step, the second load drafts as the first has found to be right.
    assert outcome.drafted[400].nodes > 0


def test_steps_whose_duration_says_nothing_teach_what_is_accepted_all_the_same() -> None:
    choice = draft_choice.DraftChoice([8] * 5, chains(1, 2, 4, 8), first=4, slope=0.25)
    for _ in range(100):
        assert choice.note(1, choice.size(1), {0: 1}, None) is None
    assert choice.size(1).nodes == 0


def test_a_bound_by_load_is_kept() -> None:
    choice = draft_choice.DraftChoice([0, 8, 2, 2], chains(1, 2, 4, 8), first=4, slope=0.01)
    for requests in (1, 2, 3):
        for _ in range(400):
            asked = choice.size(requests)
            assert asked.nodes <= [0, 8, 2, 2][requests]
            choice.note(requests, asked, {asked.nodes: requests}, 1.0)
    assert choice.size(1).nodes > 2
    assert choice.size(3).nodes == 2


def trying(requests: int) -> DraftChoice:
    """A choice that uses no drafts, which do not pay, and has just begun to try a size."""
    choice = DraftChoice([8] * 65, chains(1, 2, 4, 8), first=4, slope=0.25)
    for step in range(2000):
        asked = choice.size(requests)
        load = choice._loads.get(requests.bit_length())
        if step > 200 and load is not None and load.trying and load.current == NOTHING:
            assert asked == load.trying
            return choice
        choice.note(requests, asked, {min(asked.nodes, step % 6 == 0): requests}, 1.0 + 0.3 * asked.nodes)
    raise AssertionError("nothing was tried")


@pytest.mark.parametrize("mixed", [True, False], ids=["with prompts", "not timed"])
def test_a_try_ends_in_steps_that_say_nothing(mixed: bool) -> None:
    """As on a busy server, where nearly every step has a piece of a prompt."""
    choice = trying(4)
    drafted = 0
    for _ in range(2000):
        asked = choice.size(4)
        drafted += asked != NOTHING
        if mixed:
            choice.skip(4, asked)
        else:
            choice.note(4, asked, {0: 4}, None)
    assert 0 < drafted <= draft_choice.WASTED
    assert choice.size(4).nodes == 0


def test_tries_in_steps_that_say_nothing_are_paid_for() -> None:
    """Of eighty steps eight only decode, for which tries begin and hardly ever end by what was timed."""
    choice = trying(4)
    drafted, steps = 0, 8000
    for step in range(steps):
        asked = choice.size(4)
        drafted += asked.nodes
        if step % 80 < 8:
            choice.note(4, asked, {min(asked.nodes, step % 6 == 0): 4}, 1.0 + 0.3 * asked.nodes)
        else:
            choice.skip(4, asked)
    assert drafted < 0.03 * steps


def test_another_load_takes_over_what_is_used_and_not_what_is_tried() -> None:
    choice = trying(4)
    assert choice.size(4).nodes > 0
    assert choice.size(16).nodes == choice.size(64).nodes == 0


def test_what_the_next_load_uses_is_not_trusted_for_long_where_nothing_is_timed() -> None:
    choice = DraftChoice([8] * 65, chains(4, 8), first=8, slope=0.05)
    for _ in range(400):  # at two requests drafts pay
        asked = choice.size(2)
        choice.note(2, asked, {asked.nodes: 2}, 1.0 + 0.05 * asked.nodes)
    assert choice.size(2).nodes == choice.size(32).nodes == 8
    asked = [choice.size(32).nodes for _ in range(100) if choice.skip(32, choice.size(32)) is None]
    assert asked[: draft_choice.TRUSTED // 2] == [8] * (draft_choice.TRUSTED // 2)
    assert asked[draft_choice.TRUSTED :] == [0] * (100 - draft_choice.TRUSTED)
    assert choice.size(2).nodes == 8
    for _ in range(400):  # and where it can be timed, it is found out
        now = choice.size(32)
        choice.note(32, now, {now.nodes: 32}, 1.0 + 0.05 * now.nodes)
    assert choice.size(32).nodes == 8


def test_a_size_that_is_a_guess_is_not_used_for_long_where_nothing_is_timed() -> None:
    choice = DraftChoice([8] * 65, chains(4, 8), first=4, slope=0.05)
    while choice.size(4) == NOTHING:
        choice.note(4, NOTHING, {0: 4}, 1.0)
    asked = [choice.size(4).nodes for _ in range(100) if choice.skip(4, choice.size(4)) is None]
    assert asked[draft_choice.TRUSTED :] == [0] * (100 - draft_choice.TRUSTED)

"""Turns one after another, what is counted in them, and how their figures compare, by hand-made ones."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specext.measure import turns
from vllm_specext.measure.speculation import Speculation, counted
from vllm_specext.measure.turns import Answer, Turn, in_turns, same_tokens, speedups, spread


def sample(name: str, value: float = 0, **more: Any) -> Any:
    labels = {key: more.pop(key) for key in ("depth", "nodes", "position") if key in more}
    return SimpleNamespace(name=name, value=value, labels=labels, **more)


CHAIN = Speculation(10, 40, (8.0, 5.0, 2.0, 0.0))
FROM_A_SERVER = [
    sample("vllm:spec_decode_num_drafts_total", 10),
    sample("vllm:spec_decode_num_drafts_created", 1.7e9),
    sample("vllm:spec_decode_num_draft_tokens_total", 40),
    sample("vllm:spec_decode_num_accepted_tokens_total", 15),
    *(
        sample("vllm:spec_decode_num_accepted_tokens_per_pos_total", count, position=str(place))
        for place, count in enumerate(CHAIN.accepted)
    ),
    sample("vllm:spec_decode_num_accepted_tokens_per_pos_created", 1.7e9, position="0"),
]
FROM_AN_ENGINE = [
    sample("vllm:spec_decode_num_drafts", 10),
    sample("vllm:spec_decode_num_draft_tokens", 40),
    SimpleNamespace(name="vllm:spec_decode_num_accepted_tokens_per_pos", labels={}, values=[8, 5, 2, 0]),
]
OURS = [
    sample("vllm:specext_num_verifications_total", 4, nodes="8"),
    sample("vllm:specext_num_verifications_total", 6, nodes="24"),
    sample("vllm:specext_num_accepted_tokens_per_depth_total", 9, depth="1"),
    sample("vllm:specext_num_accepted_tokens_per_depth_total", 3, depth="2"),
]


def test_vllms_own_methods_are_counted_alike_from_servers_and_engines() -> None:
    assert counted(FROM_A_SERVER) == CHAIN
    assert counted(FROM_AN_ENGINE) == CHAIN
    assert counted([]) == Speculation()


def test_our_counters_go_first_because_trees_have_more_nodes_than_levels() -> None:
    assert counted([*FROM_A_SERVER, *OURS]) == Speculation(10, 4 * 8 + 6 * 24, (9, 3))


def test_all_are_asked_in_every_round_in_their_order_after_they_have_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[Any] = []
    monkeypatch.setattr(turns.time, "sleep", happened.append)

    def ask(name: str, number: int) -> str:
        happened.append(name)
        return f"{name}{number}"

    asks: dict[str, Callable[[int], str]] = {name: partial(ask, name) for name in ("plain", "tree")}
    assert in_turns(range(2), asks, settle=1.5) == {"plain": ["plain0", "plain1"], "tree": ["tree0", "tree1"]}
    assert happened == [1.5, "plain", 1.5, "tree"] * 2


def turn(duration: float, tokens: int = 10) -> Turn:
    return Turn([Answer(list(range(tokens)), 0.1, 1.0, 5)], duration)


def test_a_speedup_is_to_the_turn_beside_it_and_not_to_the_mean() -> None:
    assert speedups([turn(2), turn(8), turn(3)], [turn(4), turn(8), turn(9)]) == (2.0, 1.0, 3.0)
    assert spread([1.0, 3.0]) == (2.0, 1.0, 3.0)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        speedups([turn(2), turn(2)], [turn(2)])


def test_one_other_answer_in_one_turn_is_not_the_same() -> None:
    assert same_tokens([turn(1), turn(2)], [turn(3), turn(4)])
    assert not same_tokens([turn(1), turn(2, 9)], [turn(3), turn(4)])

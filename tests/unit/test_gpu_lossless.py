"""The GPU suite's comparison of tokens, without engines."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gpu_suite import lossless

ALL = sum(map(len, lossless.rounds()))


class Answers:
    """Of engines: ``different`` are the configurations with another token, ``dead`` those that end with an error."""

    def __init__(self, different: Callable[[lossless.Configuration], bool], dead: str = "") -> None:
        self.different, self.dead = different, dead

    def __call__(self, each: lossless.Configuration) -> dict[str, Any]:
        method = each.llm.get("speculative_config", {}).get("method", "plain")
        if method == self.dead:
            raise RuntimeError("the end of the log")
        ids = [0, 1 if self.different(each) else 2]
        accepted = 0 if method == "plain" else 7
        counters = {"vllm:spec_decode_num_drafts": 9, "vllm:spec_decode_num_accepted_tokens": accepted}
        return {"outputs": [{"ids": ids}] * len(each.asked()), "counters": counters}

    def rows(self, which: str = "eager") -> dict[str, dict[str, Any]]:
        return {row["method"]: row for row in lossless.rows(which, self)}


@pytest.mark.parametrize("which", lossless.CONFIGURATIONS)
def test_equal_tokens_are_right_and_a_fault_that_changes_none_is_wrong(which: str) -> None:
    found = Answers(different=lambda each: False).rows(which)
    known = lossless.CONFIGURATIONS[which]()
    faults = [name for name, each in known.items() if each.fault]
    assert faults
    assert [name for name, row in found.items() if row.get("wrong")] == faults
    plain = [name for name, each in known.items() if each.against is None]
    assert all("wrong" not in found[name] for name in plain)
    assert {each.against for each in known.values()} == {None, *plain}
    right = [row for name, row in found.items() if name not in plain and name not in faults]
    assert {(row["different"], row["accepted"]) for row in right} == {(0, 7)}
    if "slrs" in found:
        assert found["slrs"]["requests"] < found["tli"]["requests"] == ALL


def test_parts_in_graphs_are_all_methods_together() -> None:
    compared = {name for which in ("graphs", "methods") for name in lossless.CONFIGURATIONS[which]()}
    assert compared >= lossless.methods().keys()


@pytest.mark.parametrize(("different", "wrong"), [(0, False), (3, False), (4, True)])
def test_as_many_answers_may_differ_as_a_configuration_allows(different: int, wrong: bool) -> None:
    given = lossless.Configuration({"speculative_config": {}}, allowed=lossless.MAY_DIFFER)
    counters = {"vllm:spec_decode_num_accepted_tokens": 7}
    one, other = (
        {"outputs": [{"ids": [token if place < different else 0]} for place in range(ALL)], "counters": counters}
        for token in (1, 2)
    )
    assert lossless.compared(given, one, other)["wrong"] is wrong
    assert lossless.compared(replace(given, fault="some"), one, other)["wrong"] is not wrong


def test_other_tokens_are_wrong_but_for_the_fault() -> None:
    found = Answers(different=lambda each: "speculative_config" in each.llm).rows()
    right = {name for name, row in found.items() if not row.get("wrong")}
    assert right == {"plain", "griffin tree, a wrong mask bit"}
    assert found["tli"]["different"] == ALL
    assert "'top_p': 0.95" in found["tli"]["message"]
    assert "top_p" not in found["slrs"]["message"]  # asked for greedy answers alone
    assert found["tli"]["first_differences"][1] == {"request": 1, "at": 1, "token": 1, "plain": 2}
    assert found["griffin tree, a wrong mask bit"].keys().isdisjoint(("message", "first_differences"))


def test_an_engine_that_ends_costs_its_own_row() -> None:
    found = Answers(different=lambda each: bool(each.fault), dead="moa").rows()
    assert {name for name, row in found.items() if row.get("wrong")} == {
        "moa tree",
        "moa tree and clients' trees",
    }
    assert found["moa tree"]["message"] == "the end of the log"


def test_drafts_of_which_none_is_accepted_show_nothing() -> None:
    configuration = lossless.Configuration({"speculative_config": {}})
    result = {"outputs": [{"ids": [1]}] * ALL, "counters": {"vllm:spec_decode_num_accepted_tokens": 0}}
    assert lossless.compared(configuration, result, result) == {"different": 0, "wrong": True}


def test_an_answer_that_ends_early_is_different_from_there_on() -> None:
    assert lossless.first_difference(3, [5, 6], [5, 6, 7]) == {"request": 3, "at": 2, "token": None, "plain": 7}
    assert lossless.first_difference(3, [5, 6], [5, 6]) is None

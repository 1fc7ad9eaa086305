"""What requests bring of clients' drafts, and rows that wait to be taken."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from vllm_specext.engine.client_trees import KEYS, Brought, brought_by, check_client_tree
from vllm_specext.engine.clients.kept_rows import LONGEST_WAIT, MOST_BYTES, SECONDS, KeptRows
from vllm_specext.engine.clients.verifier import Answer
from vllm_specext.engine.requests import CLIENT_TREE, shorten_in_logs
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.moa.prepare import ROWS, serve_clients
from vllm_specext.options.trees import MoAOptions
from vllm_specext.remote.drafted import Drafted
from vllm_specext.tree.budget import TreeShape

SOUND: dict[str, Any] = {"ids": [5, 6, 7], "parents": [0, 0, 1], "first_row": 3, "kind": "int8", "ticket": "a"}


def config(nodes: int = 6, depth: int = 2) -> Any:
    options = SimpleNamespace(num_speculative_tokens=nodes, tree=TreeShape(nodes, depth, 3))
    model = SimpleNamespace(get_vocab_size=lambda: 100, max_model_len=64)
    return SimpleNamespace(model_config=model, speculative_config=SimpleNamespace(options=options))


def check(given: Any) -> None:
    check_client_tree(SamplingParams(extra_args={CLIENT_TREE: given}), config())


@pytest.mark.parametrize(
    "given",
    [
        SOUND,
        SOUND | {"ids": [], "parents": []},
        SOUND | {"ids": [1, 2, 3, 4, 5, 6], "parents": [0, 1, 2, 3, 4, 5]},  # a chain may be as long as trees are large
    ],
)
def test_a_sound_tree_is_what_was_brought(given: dict[str, Any]) -> None:
    check(given)
    brought = brought_by(SamplingParams(extra_args={CLIENT_TREE: given}))
    assert brought is not None
    assert brought.arguments() == {CLIENT_TREE: given}
    assert brought_by(SamplingParams()) is None
    assert brought_by(None) is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ids": [5, 6, 100]}, "'ids' must be at most 6 token ids from 0 to 99."),
        ({"ids": [5, 6, -1]}, "'ids' must be at most 6 token ids from 0 to 99."),
        ({"ids": [5, 6, True]}, "'ids' must be at most 6 token ids from 0 to 99."),
        ({"ids": "567"}, "'ids' must be at most 6 token ids from 0 to 99."),
        ({"ids": [1] * 7}, "'ids' must be at most 6 token ids from 0 to 99."),
        ({"ids": [5, 6]}, "a tree has 2 token ids and 3 parents."),
        ({"parents": [0, 0, 3]}, "node 3 of a tree has parent 3, which does not come before it."),
        ({"parents": [0, 0, 6]}, "'parents' must be at most 6 numbers of nodes, the root's being 0."),
        ({"ids": [5, 5, 7]}, "two children of one node of a tree hold the same token."),
        (
            {"ids": [1, 2, 3, 4], "parents": [0, 1, 2, 0]},
            "a tree has 3 levels, but at most 2 are allowed.",
        ),
        ({"first_row": 64}, "'first_row' must be a token of the text, the first being 0."),
        ({"first_row": None}, "'first_row' must be a token of the text, the first being 0."),
        ({"kind": "float64"}, "'kind' must be 'int8' or 'float16'."),
        ({"ticket": ""}, "'ticket' must be a string of 1 to 64 characters."),
        ({"ticket": "a" * 65}, "'ticket' must be a string of 1 to 64 characters."),
        ({"more": 1}, f"must have {', '.join(KEYS)} and nothing else."),
    ],
)
def test_what_is_no_tree_is_refused_in_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(VLLMValidationError) as refused:
        check(SOUND | change)
    assert str(refused.value).startswith(f"'client_tree': {sentence}")


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(VLLMValidationError, match="and nothing else"):
        check([1, 2])


def test_logs_have_no_token_of_a_tree() -> None:
    params = SamplingParams(extra_args=Brought(Drafted.chain([71, 72]), 0, "int8", "a").arguments())
    shorten_in_logs(params)
    assert "71" not in repr(params)
    assert "<2 token ids>" in repr(params)
    brought = brought_by(params)
    assert brought is not None
    assert brought.tree.ids.tolist() == [71, 72]


@pytest.mark.parametrize(
    ("outputs", "extra", "whole"),
    [
        ([[5], [7, 9]], 0, [False, True]),  # the tree holds the first token, and what is under it is verified
        ([[6]], 0, [True]),  # nothing is under it
        ([[8]], 0, [True]),  # the tree does not hold it
        ([[8], [1], [2]], 2, [False, False, True]),
        ([[5], [7, 9], [1], [2]], 2, [False, False, False, True]),
        ([[5, 7, 9]], 0, [False]),  # two outputs came as one: nobody can tell, and one more does no harm
    ],
)
def test_a_request_has_done_its_work_when_its_tree_is_verified(
    outputs: list[list[int]], extra: int, whole: list[bool]
) -> None:
    tree = Drafted.made(np.array(SOUND["ids"]), np.array(SOUND["parents"]))
    answer = Answer(tree, extra)
    assert [answer.is_whole(said) for said in outputs] == whole
    assert answer.tokens == [token for said in outputs for token in said]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rows_are_taken_once_and_in_their_order() -> None:
    kept = KeptRows(Clock())
    kept.begin("a")
    kept.add("a", b"12")
    kept.add("a", b"3")
    kept.add("unknown", b"4")
    assert (kept.take("a"), kept.take("a"), len(kept)) == (b"123", b"", 0)


def test_a_request_that_comes_back_begins_anew() -> None:
    kept = KeptRows(Clock())
    for _ in range(2):
        kept.begin("a")
        kept.add("a", b"12")
    assert kept.take("a") == b"12"


def test_rows_that_nobody_takes_are_given_up() -> None:
    clock = Clock()
    kept = KeptRows(clock)
    for ticket in ("old", "waits", "new"):
        kept.begin(ticket)
        if ticket != "waits":  # for its first step
            kept.add(ticket, b"1")
        clock.now += SECONDS * 0.6
    kept.add("new", b"2")
    assert (kept.take("old"), kept.take("new")) == (b"", b"12")
    kept.add("waits", b"3")
    assert kept.take("waits") == b"3"


def test_a_request_that_never_had_a_step_is_forgotten_at_last() -> None:
    clock = Clock()
    kept = KeptRows(clock)
    kept.begin("gone")
    clock.now = LONGEST_WAIT + 1
    kept.begin("new")
    kept.add("new", b"1")
    assert kept.take("new") == b"1"
    assert len(kept) == 0


def test_rows_of_many_do_not_fill_the_memory() -> None:
    kept = KeptRows(Clock())
    for ticket in range(5):
        kept.begin(str(ticket))
        kept.add(str(ticket), bytes(MOST_BYTES // 2))
    assert [len(kept.take(str(ticket))) > 0 for ticket in range(5)] == [False, False, False, True, True]


def moa(**keys: Any) -> MoAOptions:
    return MoAOptions(model="drafter", client_drafts=True, **keys)


def launch(**parallel: Any) -> Any:
    sizes = dict.fromkeys(("tensor_parallel_size", "data_parallel_size"), 1)
    return SimpleNamespace(parallel=SimpleNamespace(**{**sizes, "worker_extension_cls": "", **parallel}))


def test_workers_of_a_server_of_clients_learn_to_give_rows() -> None:
    started = launch()
    serve_clients(moa(), started)
    assert started.parallel.worker_extension_cls == ROWS
    assert moa().longest_given == 62


@pytest.mark.parametrize(
    ("keys", "parallel", "sentence"),
    [
        ({}, {"tensor_parallel_size": 2}, "needs --tensor-parallel-size 1, but it is 2."),
        ({}, {"data_parallel_size": 2}, "needs --data-parallel-size 1, but it is 2."),
        ({"prediction_tokens": 8}, {}, "'prediction_tokens' is 8, but with client_drafts it must be 0."),
        ({"tree_top_k": 1}, {}, "'client_drafts' needs draft trees: tree_top_k above 1."),
        ({}, {"worker_extension_cls": "a.B"}, "'a.B', but with client_drafts it must not be given."),
    ],
)
def test_what_clients_cannot_have_is_refused(keys: dict[str, Any], parallel: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        serve_clients(moa(**keys), launch(**parallel))

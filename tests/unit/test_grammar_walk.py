"""Masks of the nodes of trees are those that vLLM fills for the path to each node, which is a chain."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.parser.engine.adapters import ParserEngineReasoningAdapter
from vllm.reasoning import ReasoningParser
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from vllm_specext.engine.scheduler.grammar_walk import DraftedTree
from vllm_specext.engine.scheduler.grammars import FEW, Grammars
from vllm_specext.engine.scheduler.told_parents import tell_parents
from vllm_specext.measure.bundled import GRIFFIN_CHAIN, TARGET

NODES, VOCABULARY = 24, 2048
TREE = GRIFFIN_CHAIN | {
    "num_speculative_tokens": NODES,
    "tree_depth": 8,
    "tree_top_k": 4,
    "num_speculative_tokens_per_batch_size": [[1, 4, NODES]],
}
GRAMMARS: dict[str, dict[str, Any]] = {
    "words": {"regex": r"[a-z]{1,4}( [a-z]{1,4}){1,2}"},
    "record": {"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    "choice": {"regex": "(return self|return None|no)"},
}
THINKS, CALLS = 300, 301
"""Tokens that end reasoning; the second is one of the answer."""


@pytest.fixture(scope="module")
def configuration() -> VllmConfig:
    return EngineArgs(
        model=str(TARGET), max_model_len=256, max_num_seqs=4, speculative_config=TREE
    ).create_engine_config()


@pytest.fixture(scope="module", params=["xgrammar", "guidance", "outlines"])
def manager(request: pytest.FixtureRequest, configuration: VllmConfig) -> Iterator[StructuredOutputManager]:
    made = StructuredOutputManager(configuration)
    made.kind = request.param  # type: ignore[attr-defined]
    yield made
    made.clear_backend()


def asked(manager: StructuredOutputManager, name: str, **structure: Any) -> Request:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**structure))
    params.structured_outputs._backend = manager.kind  # type: ignore[union-attr, attr-defined]
    params.update_from_generation_config({}, 0)
    made = Request(name, [5, 6, 7], params, pooling_params=None)
    manager.grammar_init(made)
    assert made.structured_output_request is not None
    while not made.structured_output_request.is_grammar_ready:
        pass
    assert not isinstance(made.structured_output_request.grammar, Exception)
    return made


def by_vllm(manager: StructuredOutputManager, request: Request, path: list[int]) -> np.ndarray | None:
    """The mask after a ``path`` of drafted tokens; ``None`` where the grammar refuses one."""
    if manager.validate_tokens(request, path) != path:
        return None
    name = request.request_id
    rows = manager.grammar_bitmask({name: request}, [name], {name: path} if path else {})
    assert rows is not None
    return rows[len(path)].copy()


def allowed(row: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[:VOCABULARY])


def grown(manager: StructuredOutputManager, request: Request, chooser: random.Random) -> tuple[DraftedTree, list]:
    """A tree of likely and impossible tokens, and vLLM's mask of each node, the root's first."""
    paths: list[list[int]] = [[]]
    masks, parents = [by_vllm(manager, request, [])], []
    while len(paths) <= NODES:
        reached = [node for node, mask in enumerate(masks) if mask is not None]
        parent = chooser.choice(reached[-4:] if chooser.random() < 0.9 else range(len(paths)))
        mask = masks[parent]
        choices = [] if mask is None else allowed(mask).tolist()
        token = chooser.choice(choices) if choices and chooser.random() < 0.8 else chooser.randrange(VOCABULARY)
        if chooser.random() < 0.15:
            token = chooser.choice([THINKS, CALLS, 0])
        path = [*paths[parent], token]
        paths.append(path)
        masks.append(None if masks[parent] is None else by_vllm(manager, request, path))
        parents.append(parent)
    return DraftedTree([path[-1] for path in paths[1:]], parents), masks


def filled(
    manager: StructuredOutputManager, requests: list[Request], trees: list[DraftedTree | None], most: int = NODES
) -> tuple[GrammarOutput, list[np.ndarray]]:
    """Of the ``requests`` of a step, of which those without a tree have no draft."""
    names = [one.request_id for one in requests]
    by_name = dict(zip(names, requests, strict=True))
    grammars = Grammars(manager)
    drafted = {name: tree for name, tree in zip(names, trees, strict=True) if tree is not None}
    drafts = DraftTokenIds(list(drafted), [tree.tokens for tree in drafted.values()])
    tell_parents(drafts, [tree.parents for tree in drafted.values()])
    others, kept = grammars.take(drafts, by_name)
    assert (others.req_ids, kept) == ([], {name: len(tree.tokens) for name, tree in drafted.items()})
    counts = [0 if tree is None else min(most, len(tree.tokens)) for tree in trees]
    scheduled = {name: [-1] * count for name, count in zip(names, counts, strict=True) if count}
    rows = manager.grammar_bitmask(by_name, names, scheduled)
    assert rows is not None
    output = GrammarOutput(names, rows, [0] * len(names))
    output = grammars.fill(output, scheduled, by_name, NODES)
    first = np.arange(len(names)) * (1 + NODES) if len(rows) == len(names) * (1 + NODES) else _starts(counts)
    return output, [rows[start : start + 1 + count].copy() for start, count in zip(first, counts, strict=True)]


def _starts(counts: list[int]) -> np.ndarray:
    return np.cumsum([0, *(1 + count for count in counts)])[:-1]


def unlike(rows: np.ndarray, masks: list[np.ndarray | None]) -> list[int]:
    """Nodes whose mask is not what vLLM fills, of those that can be reached."""
    return [node for node, mask in enumerate(masks) if mask is not None and not np.array_equal(rows[node], mask)]


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_masks_are_those_of_the_paths(manager: StructuredOutputManager, grammar: str) -> None:
    chooser, reached, faults = random.Random(1), 0, 0
    request = asked(manager, "one", **GRAMMARS[grammar])
    for _ in range(6):
        tree, masks = grown(manager, request, chooser)
        output, (rows,) = filled(manager, [request], [tree])
        assert unlike(rows, masks) == []
        assert output.num_acceptable_drafts == [NODES]
        reached += sum(mask is not None for mask in masks)
        chain = DraftedTree(tree.tokens, list(range(NODES)))
        faults += len(unlike(filled(manager, [request], [chain])[1][0], masks))
        assert manager.accept_tokens(request, [int(allowed(rows[0])[0])])
    assert reached > 20
    assert faults > 5


def test_impossible_tokens_are_refused_by_the_parents_mask(manager: StructuredOutputManager) -> None:
    request = asked(manager, "one", **GRAMMARS["record"])
    tree, masks = grown(manager, request, random.Random(2))
    _, (rows,) = filled(manager, [request], [tree])
    refused = 0
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True), 1):
        if masks[node] is None and masks[parent] is not None:
            assert token not in allowed(rows[parent])
            refused += 1
    assert refused > 2


def test_requests_of_a_step_have_their_own(manager: StructuredOutputManager) -> None:
    chooser = random.Random(3)
    requests = [asked(manager, name, **GRAMMARS[name]) for name in GRAMMARS]
    first, last = (grown(manager, one, chooser) for one in (requests[0], requests[2]))
    _, rows = filled(manager, requests, [first[0], None, last[0]])
    assert (unlike(rows[0], first[1]), unlike(rows[2], last[1])) == ([], [])
    assert np.array_equal(rows[1][0], by_vllm(manager, requests[1], []))
    # A request's end leaves no more room than for a part.
    output, rows = filled(manager, requests, [first[0], None, last[0]], most=5)
    assert unlike(rows[2], last[1][:6]) == []
    assert output.num_acceptable_drafts == [5, 0, 5]


def test_padding_and_unknown_tokens_are_nobodys_children() -> None:
    tree = DraftedTree([4, 5, -1, 0, 0], [0, 1, 0, 4, 5])
    assert tree.children() == [[1], [2], [], [], [], []]


def test_a_tree_of_unknown_shape_is_not_accepted(manager: StructuredOutputManager) -> None:
    request = asked(manager, "one", **GRAMMARS["words"])
    grammars, by_name = Grammars(manager), {"one": request}
    assert grammars.take(DraftTokenIds(["one"], [[1, 2, 3]]), by_name)[1] == {"one": 3}
    scheduled = {"one": [-1] * 3}
    rows = manager.grammar_bitmask(by_name, ["one"], scheduled)
    assert rows is not None
    output = GrammarOutput(["one"], rows, [0])
    output = grammars.fill(output, scheduled, by_name, NODES)
    assert output.num_acceptable_drafts == [0]


class Streaming:
    """A reasoner that is asked of every token."""

    def is_reasoning_end(self, ids: Any) -> bool:
        return THINKS in ids

    def is_reasoning_end_streaming(self, ids: Any, delta: Any) -> bool:
        return THINKS in list(delta)


class Scanning(ReasoningParser):
    """One that reads the whole text for its answer, as those do that inherit it."""

    def __init__(self) -> None:
        """Without a tokenizer."""

    def is_reasoning_end(self, input_ids: Any) -> bool:
        return THINKS in list(input_ids)

    extract_content_ids = extract_reasoning = extract_reasoning_streaming = None  # type: ignore[assignment]


class Searching(ParserEngineReasoningAdapter):
    """One that is asked where reasoning ends, which may be at the answer's first token."""

    implicit_reasoning_end_token_ids = frozenset({CALLS})

    def __init__(self) -> None:
        """Without a tokenizer."""

    @property
    def reasoning_end_token_ids(self) -> frozenset[int]:
        return frozenset({THINKS, CALLS})

    def is_reasoning_end(self, ids: Any) -> bool:
        return False

    def find_reasoning_end(self, ids: Any) -> Any:
        ends = [
            SimpleNamespace(offset=at, implicit=one == CALLS) for at, one in enumerate(ids) if one in (THINKS, CALLS)
        ]
        return ends[0] if ends else None


def test_a_parser_that_reads_the_whole_text_is_asked_about_few_paths(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "reasoner_cls", Scanning)
    request, chooser = asked(manager, "one", regex=r"[a-z ]{1,40}"), random.Random(5)
    assert request.structured_output_request is not None
    request.structured_output_request.reasoner = Scanning()
    tree, masks = grown(manager, request, chooser)
    output, (rows,) = filled(manager, [request], [tree])
    assert unlike(rows, masks[: 1 + FEW]) == []
    assert output.num_acceptable_drafts == [FEW]
    request.structured_output_request.reasoning_ended = True
    assert filled(manager, [request], [tree])[0].num_acceptable_drafts == [NODES]


def test_a_path_that_begins_to_reason_again_does_not_hide_the_end_from_others(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Again(Streaming):
        """The last of both tokens decides."""

        def is_reasoning_end_streaming(self, ids: Any, delta: Any) -> bool:
            last = [one for one in delta if one in (THINKS, CALLS)][-1:]
            return last == [THINKS]

    monkeypatch.setattr(manager, "reasoner_cls", Again)
    request = asked(manager, "one", regex=r"[a-z ]{1,40}")
    assert request.structured_output_request is not None
    request.structured_output_request.reasoner = Again()
    # After node 1, which ends it, node 2 begins again, and node 3 does not.
    _, (rows,) = filled(manager, [request], [DraftedTree([THINKS, CALLS, 305], [0, 1, 1])])
    mask = by_vllm(manager, request, [THINKS])
    assert mask is not None
    assert np.array_equal(rows[1], mask)
    assert not np.array_equal(rows[0], mask)


@pytest.mark.parametrize("reasoner", [Streaming, Searching])
@pytest.mark.parametrize("regex", [r"[a-z ]{1,40}", None])
def test_a_grammar_begins_where_reasoning_ends_on_a_path(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch, reasoner: type, regex: str | None
) -> None:
    """Without a ``regex`` the answer may begin with the token that ends reasoning."""
    monkeypatch.setattr(manager, "reasoner_cls", reasoner)
    begun, chooser = 0, random.Random(4)
    regex = regex or r"(.|\n)*"
    for number in range(6):
        request = asked(manager, f"{number}", regex=regex)
        assert request.structured_output_request is not None
        request.structured_output_request.reasoner = reasoner()
        tree, masks = grown(manager, request, chooser)
        _, (rows,) = filled(manager, [request], [tree])
        assert unlike(rows, masks) == []
        begun += sum(mask is not None and not np.array_equal(mask, masks[0]) for mask in masks)
    assert begun > 0

"""The byte trie against dictionaries of strings."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_specext.methods.foreign_vocab.distributions.trie import Trie

FEW_BYTES = st.text("ab\0", min_size=1, max_size=5).map(str.encode)
VOCABULARIES = st.lists(st.binary(min_size=1, max_size=5) | FEW_BYTES, min_size=1)


def walk(trie: Trie, text: bytes) -> int:
    node = torch.tensor(0)
    for byte in text:
        node = trie.step(node, torch.tensor(byte))
    return int(node)


def numbered(tokens: list[bytes]) -> Trie:
    return Trie.of((text, token) for token, text in enumerate(tokens))


def prefixes(tokens: list[bytes]) -> set[bytes]:
    return {text[:length] for text in tokens for length in range(1, len(text) + 1)}


@settings(max_examples=60)
@given(tokens=VOCABULARIES, other=st.binary(max_size=6))
def test_walks_stay_inside_as_long_as_they_spell_a_beginning_of_a_token(tokens: list[bytes], other: bytes) -> None:
    trie = numbered(tokens)
    nodes = {text: walk(trie, text) for text in prefixes(tokens)}
    assert sorted(nodes.values()) == list(range(1, trie.outside))
    assert (walk(trie, other) == trie.outside) == (bool(other) and other not in nodes)
    assert walk(trie, other + b"longer than any token") == trie.outside


@settings(max_examples=60)
@given(tokens=VOCABULARIES)
def test_nodes_know_their_token_the_longest_shorter_one_and_whether_they_go_on(tokens: list[bytes]) -> None:
    trie = numbered(tokens)
    nearest, goes_on = trie.nearest(), trie.goes_on()
    assert goes_on[0]
    assert not goes_on[trie.outside]
    assert trie.token[[0, trie.outside]].tolist() == [-1, -1]
    for text in prefixes(tokens):
        node = walk(trie, text)
        assert trie.token[node] == (tokens.index(text) if text in tokens else -1)
        shorter = [text[:length] for length in range(1, len(text)) if text[:length] in tokens]
        assert nearest[node] == (tokens.index(shorter[-1]) if shorter else -1)
        assert goes_on[node] == any(token != text and token.startswith(text) for token in tokens)


@settings(max_examples=60)
@given(tokens=VOCABULARIES)
def test_the_tokens_that_begin_alike_stand_side_by_side(tokens: list[bytes]) -> None:
    trie = numbered(tokens)
    ids, (first, last) = trie.ids.tolist(), trie.spans.tolist()
    assert (first[0], last[0]) == (0, len(tokens))
    for text in prefixes(tokens):
        node = walk(trie, text)
        below = ids[first[node] : last[node]]
        assert sorted(below) == [token for token, other in enumerate(tokens) if other.startswith(text)]
    for token, end in zip(ids, trie.ends.tolist(), strict=True):
        assert walk(trie, tokens[token]) == end


def test_levels_are_the_nodes_by_depth() -> None:
    trie = numbered([b"ab", b"ac", b"b", b"acd"])
    assert trie.levels == (slice(1, 3), slice(3, 5), slice(5, 6))
    assert [walk(trie, text) for text in (b"a", b"b", b"ab", b"ac", b"acd")] == [1, 2, 3, 4, 5]

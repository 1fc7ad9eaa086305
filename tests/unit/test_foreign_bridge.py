"""The drafter reads the target's text and the target gets the drafter's, byte for byte, wherever tokens are cut."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.unit.foreign_tokenizers import CHINESE, EMOJI, LATIN, TOKENIZERS, code, texts, vocabulary, wrap
from vllm_specext.methods.foreign_vocab.text.bridge import Bridge, Outcome
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import Vocabulary, read_vocabulary

PAIRS = pytest.mark.parametrize(("target", "drafter"), list(permutations(TOKENIZERS, 2)))
DRAFTED = 8
REPLACEMENT = "\ufffd".encode()

Convert = Callable[[Bridge, list[int]], list[int]]


def steps(
    target: Vocabulary, drafter: Vocabulary, text: str, convert: Convert, bridge: Bridge
) -> Iterator[tuple[list[int], list[int]]]:
    """Of a drafter that writes what the target will: the tokens found in each step, and those that the draft covers."""
    ids, data = target.encode(text), text.encode()
    ends = list(accumulate(len(target.token_bytes[id] or b"") for id in ids))
    done, new = 0, 3
    while done < len(ids):
        bridge.commit(ids[done : done + new])
        done += new
        start = len(drafter.bytes_of(bridge.draft_ids))
        rest = data[start:].decode()
        drafted = drafter.encode(rest[: 20 * DRAFTED])[:DRAFTED]
        whole = drafter.bytes_of(drafted).decode(errors="ignore")
        coverable = [id for id, end in zip(ids[done:], ends[done:], strict=True) if end <= start + len(whole.encode())]
        found = convert(bridge, drafted)
        yield found, coverable
        new = 1 + same(found, coverable)


def same(a: list[int], b: list[int]) -> int:
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def recovered(target: Vocabulary, drafter: Vocabulary, text: str, convert: Convert) -> float:
    pairs = list(steps(target, drafter, text, convert, Bridge(target, drafter, {})))
    return sum(same(*pair) for pair in pairs) / sum(len(coverable) for _, coverable in pairs)


def by_bytes(bridge: Bridge, drafted: list[int]) -> list[int]:
    return bridge.convert(drafted).ids


@PAIRS
@pytest.mark.parametrize("kind", texts())
def test_what_a_perfect_drafter_writes_is_recovered(target: str, drafter: str, kind: str) -> None:
    assert recovered(vocabulary(target), vocabulary(drafter), texts()[kind], by_bytes) >= 0.98


@pytest.mark.parametrize(("target", "drafter"), [("chatml", "pieces"), ("pieces", "chatml")])
def test_encoding_the_new_text_alone_recovers_far_less(target: str, drafter: str) -> None:
    def alone(bridge: Bridge, drafted: list[int]) -> list[int]:
        return TOKENIZERS[target]().encode(TOKENIZERS[drafter]().decode(drafted), add_special_tokens=False)

    assert recovered(vocabulary(target), vocabulary(drafter), code()[-3000:], alone) < 0.6


def test_repeated_indentation_is_not_taken_for_an_earlier_line() -> None:
    text = "if a:\n" + "        x = x + 1\n" * 60 + "        return x\n"
    for target, drafter in permutations(TOKENIZERS, 2):
        assert recovered(vocabulary(target), vocabulary(drafter), text, by_bytes) >= 0.98


@PAIRS
@settings(max_examples=25)
@given(data=st.data())
def test_the_drafters_text_is_the_targets_whatever_was_drafted(target: str, drafter: str, data: st.DataObject) -> None:
    theirs, ours = vocabulary(target), vocabulary(drafter)
    start = data.draw(st.integers(0, 300))
    written = st.sampled_from([CHINESE, EMOJI, LATIN]).map(lambda text: text[start : start + 40])
    text = data.draw(st.text(st.characters(codec="utf-8", exclude_characters="▁\ufffd")) | written)
    ids, committed = theirs.encode(text), b""
    bridge = Bridge(theirs, ours, {}, lookbehind=data.draw(st.integers(0, 12)))
    while ids:
        new = data.draw(st.integers(1, 9))
        committed += theirs.bytes_of(ids[:new])
        before = list(bridge.draft_ids)
        kept = bridge.commit(ids[:new])
        ids = ids[new:]
        assert kept == same(before, bridge.draft_ids)
        assert ours.bytes_of(bridge.draft_ids) == committed.decode(errors="ignore").encode()
        rest = committed[len(ours.bytes_of(bridge.draft_ids)) :] + theirs.bytes_of(ids)
        likely = ours.encode(rest.decode())[: data.draw(st.integers(0, 9))]
        random = data.draw(st.lists(st.integers(0, len(ours.token_bytes) + 9), max_size=3))
        before = list(bridge.draft_ids)
        converted = bridge.convert(likely + random)
        assert bridge.draft_ids == before + likely + random
        assert (converted.outcome is Outcome.NONE) == (not converted.ids)
        *inner, last = converted.ids or [0]
        assert all(not theirs.is_marker(id) and id < len(theirs.token_bytes) for id in inner)
        assert not theirs.is_marker(last) or last in theirs.ends or not converted.ids
        assert REPLACEMENT not in theirs.bytes_of(converted.ids)


@PAIRS
def test_a_character_that_was_begun_waits_for_its_end(target: str, drafter: str) -> None:
    theirs, ours = vocabulary(target), vocabulary(drafter)
    ids = theirs.encode("a 麤 b")
    begun = next(n for n in range(len(ids)) if not ends_whole(theirs.bytes_of(ids[:n])))
    bridge = Bridge(theirs, ours, {})
    bridge.commit(ids[:begun])
    assert ours.bytes_of(bridge.draft_ids) in (b"a", b"a ")
    rest = ours.encode("a 麤 b"[len(ours.bytes_of(bridge.draft_ids)) :])
    assert bridge.convert(rest) == (ids[begun:], Outcome.EXACT)
    bridge.commit([])
    assert bridge.convert(ours.encode(" x")).outcome is Outcome.NONE


def ends_whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_draft_that_stops_within_a_character_is_converted_up_to_it() -> None:
    theirs, ours = vocabulary("chatml"), vocabulary("pieces")
    drafted = ours.encode("好 麤")[:-1]
    bridge = Bridge(theirs, ours, {})
    bridge.commit(theirs.encode("你"))
    assert theirs.bytes_of(bridge.convert(drafted).ids).decode() == "好 "


@pytest.mark.parametrize(
    ("text", "drafted", "outcome"), [("value", " = 1", Outcome.OFFSET), ("val", "ue = 1", Outcome.MERGE)]
)
def test_committed_tokens_stay_as_they_are_where_encoding_would_change_them(
    text: str, drafted: str, outcome: Outcome
) -> None:
    theirs, ours = vocabulary("chatml"), vocabulary("pieces")
    assert len(theirs.encode("value")) == 1
    bridge = Bridge(theirs, ours, {})
    for letter in text:
        bridge.commit(theirs.encode(letter))
    assert bridge.convert(ours.encode(drafted)) == (theirs.encode(drafted), outcome)


def test_bytes_that_are_no_text_are_left_out_and_what_follows_them_is_not() -> None:
    theirs, ours = vocabulary("chatml"), vocabulary("pieces")
    byte = {own: id for id, own in enumerate(theirs.token_bytes)}
    bridge = Bridge(theirs, ours, {}, lookbehind=2)
    for new in ([*theirs.encode("ab"), byte[b"\xff"]], [byte[b"\x80"], byte[b"\xe5"]], theirs.encode("cd")):
        bridge.commit(new)
    assert ours.bytes_of(bridge.draft_ids) == b"abcd"
    assert theirs.bytes_of(bridge.convert(ours.encode(" ef")).ids) == b" ef"


@PAIRS
def test_short_prompts_are_converted_whole(target: str, drafter: str) -> None:
    theirs, ours = vocabulary(target), vocabulary(drafter)
    for prompt in ("", "d", "def f(", "好"):
        bridge = Bridge(theirs, ours, {})
        bridge.commit(theirs.encode(prompt))
        draft = "self, value):\n    return value\n"
        assert theirs.bytes_of(bridge.convert(ours.encode(draft)).ids) == draft.encode()


@cache
def lower() -> Vocabulary:
    tokenizer = Tokenizer.from_str(TOKENIZERS["headers"]().backend_tokenizer.to_str())
    tokenizer.normalizer = normalizers.Lowercase()
    return read_vocabulary(wrap(tokenizer), size=tokenizer.get_vocab_size(), ends=[])


@cache
def ascii_only() -> Vocabulary:
    """Characters, of which it knows few, and no bytes."""
    ids = {character: id for id, character in enumerate(["<unk>", "▁", *map(chr, range(33, 127))])}
    tokenizer = Tokenizer(models.BPE(ids, [], unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return read_vocabulary(wrap(tokenizer, unk_token="<unk>"), size=len(ids), ends=[])


def vocabularies() -> dict[str, Vocabulary]:
    return {"chatml": vocabulary("chatml"), "pieces": vocabulary("pieces"), "lower": lower(), "ascii": ascii_only()}


def test_a_tokenizer_that_changes_texts_only_makes_worse_drafts() -> None:
    text = code()[-3000:]
    assert not lower().exact
    assert recovered(vocabulary("pieces"), lower(), text.lower(), by_bytes) >= 0.98
    theirs, ours = vocabulary("pieces"), lower()
    bridge = Bridge(theirs, ours, {})
    for start in range(0, len(ids := theirs.encode(text)), 5):
        bridge.commit(ids[start : start + 5])
        assert ours.bytes_of(bridge.draft_ids).decode() == theirs.bytes_of(ids[: start + 5]).decode().lower()
    assert theirs.bytes_of(bridge.convert(ours.encode("done = True")).ids) == b"done = true"
    bridge = Bridge(lower(), vocabulary("pieces"), {})
    bridge.commit(lower().encode(text))
    converted = bridge.convert(vocabulary("pieces").encode("Done = True"))
    assert converted == (lower().encode("done = true"), Outcome.EXACT)


@pytest.mark.parametrize(("target", "drafter"), list(permutations(["chatml", "pieces", "lower", "ascii"], 2)))
def test_no_step_encodes_more_than_the_end_of_the_text(
    target: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = vocabularies()[target], vocabularies()[drafter]
    sizes = []
    for own in (theirs, ours):
        encode = own.encode
        monkeypatch.setattr(own, "encode", lambda text, encode=encode: sizes.append(len(text)) or encode(text))
    for text in (code()[-4000:], CHINESE * 4):
        ids = theirs.encode(text)
        bridge = Bridge(theirs, ours, {})
        bridge.commit(ids[: len(ids) // 2])
        sizes.clear()
        for start in range(len(ids) // 2, len(ids), 4):
            bridge.commit(ids[start : start + 4])
            bridge.convert(bridge.draft_ids[-3:])
        assert max(sizes, default=0) < 500

"""Markers bound a text on both sides, and the drafter's end becomes the target's."""

from tests.unit.foreign_tokenizers import TOKENIZERS, vocabulary
from vllm_specext.methods.foreign_vocab.text.bridge import Bridge, Outcome


def test_a_literal_spelling_of_a_marker_is_text_on_both_sides() -> None:
    theirs, ours = vocabulary("chatml"), vocabulary("pieces")
    text = "print('</s><|im_end|>') # <s>"
    bridge = Bridge(theirs, ours, {})
    bridge.commit(theirs.encode(text))
    assert ours.bytes_of(bridge.draft_ids) == text.encode()
    converted = bridge.convert(ours.encode(" <|im_start|></s>"))
    assert theirs.bytes_of(converted.ids) == b" <|im_start|></s>"
    assert not any(theirs.is_marker(id) for id in converted.ids)


def ids_of(name: str, *spellings: str) -> list[int]:
    return TOKENIZERS[name]().convert_tokens_to_ids(list(spellings))


def test_the_drafters_end_becomes_the_targets_of_the_same_role_and_ends_the_draft() -> None:
    theirs, ours = vocabulary("chatml"), vocabulary("pieces")
    text_end, turn_end = ids_of("chatml", "<|endoftext|>", "<|im_end|>")
    own_text_end, own_turn_end, user = ids_of("pieces", "</s>", "<|end|>", "<|user|>")
    markers = {turn_end: (own_turn_end, *ours.encode("\n"))}
    draft = ours.encode(" there.")
    for drafted, ends in (
        ([*draft, own_turn_end, *draft], [turn_end]),
        ([*draft, own_text_end], [min(text_end, turn_end)]),
        ([*draft, user, own_text_end], []),
        ([*draft, len(ours.token_bytes), own_text_end], []),
        ([*draft, -10, own_text_end], []),
        ([own_turn_end], [turn_end]),
        ([user], []),
    ):
        bridge = Bridge(theirs, ours, markers)
        bridge.commit(theirs.encode("Hello"))
        wanted = theirs.encode(" there.") if drafted[0] == draft[0] else []
        assert bridge.convert(drafted).ids == [*wanted, *ends]
        assert bridge.draft_ids == [*ours.encode("Hello"), *drafted]


def test_of_several_ends_with_the_same_role_the_lowest_is_proposed() -> None:
    theirs, ours = vocabulary("chatml"), vocabulary("pieces")
    (own,) = ids_of("pieces", "</s>")
    bridge = Bridge(theirs, ours, dict.fromkeys(theirs.ends, (own,)))
    assert bridge.convert([own]).ids == [min(theirs.ends)]


def test_an_end_after_half_a_character_is_not_proposed() -> None:
    theirs, ours = vocabulary("chatml"), vocabulary("pieces")
    (end,) = ids_of("pieces", "</s>")
    bridge = Bridge(theirs, ours, {})
    bridge.commit(theirs.encode("ab"))
    assert bridge.convert([*ours.encode(" 麤")[:-1], end]).ids == theirs.encode(" ")


def test_no_token_reaches_across_a_marker() -> None:
    theirs, ours = vocabulary("pieces"), vocabulary("chatml")
    user, tool = ids_of("pieces", "<|user|>", "<tool>")
    mapped = (*ids_of("chatml", "<|im_start|>"), *ours.encode("user\n"))
    bridge = Bridge(theirs, ours, {user: mapped})
    bridge.commit([*theirs.encode("retu"), user, *theirs.encode("retu")])
    assert bridge.draft_ids == [*ours.encode("retu"), *mapped, *ours.encode("retu")]
    before = list(bridge.draft_ids)
    assert bridge.convert(ours.encode(" y")) == (theirs.encode(" y"), Outcome.EXACT)
    bridge.commit([])
    assert theirs.bytes_of(bridge.convert(ours.encode("rn y")).ids) == b"rn y"
    assert bridge.commit([tool, *theirs.encode("rn x")]) == len(before) + len(ours.encode("rn"))
    assert bridge.draft_ids == [*before, *ours.encode("rn x")]


def test_a_text_opens_as_the_drafters_do_and_only_once() -> None:
    theirs, ours = vocabulary("pieces"), vocabulary("headers")
    (begin,), (own,) = ids_of("pieces", "<s>"), ids_of("headers", "<|begin|>")
    for start in ([], [begin]):
        bridge = Bridge(theirs, ours, {begin: (own,)}, opening=[own])
        bridge.commit([*start, *theirs.encode("some text")])
        assert bridge.draft_ids == [own, *ours.encode("some text")]
        assert bridge.commit([begin, *theirs.encode("more")]) == 1 + len(ours.encode("some text"))
        assert bridge.draft_ids == [own, *ours.encode("some text"), own, *ours.encode("more")]

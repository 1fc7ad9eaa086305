"""Preparing data from files to files, with each choice of answers."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.answerers import Scripted, TinyTarget
from tests.unit.chat_templates import NO_PREFIX, answers_in, chat, template
from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.conversation import Found, Text
from vllm_specext.training.data.folder import read_data, read_stats
from vllm_specext.training.data.groups import MOST_ROWS, answered_groups
from vllm_specext.training.data.prepare import prepare
from vllm_specext.training.data.progress import Progress
from vllm_specext.training.data.readable import FEW, look_through
from vllm_specext.training.data.row import Row
from vllm_specext.training.data.settings import data_settings
from vllm_specext.training.data.stats import read_token_counts, remarks
from vllm_specext.training.data.turns import conversation_of

COUNT = 40
USED = template("chatml")


def write(path: Path, rows: Sequence[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def chats(count: int = COUNT) -> list[dict[str, Any]]:
    """Conversations of two turns."""
    contents = [(f"What is {i}?", f"The answer {i}", "Why?", "It depends") for i in range(count)]
    roles = ("user", "assistant") * 2
    return [
        {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]}
        for texts in contents
    ]


def rows_in(folder: Path) -> list[Row]:
    return [*read_data(folder, "train"), *read_data(folder, "valid")]


def given(tmp_path: Path, rows: Sequence[Any], **values: Any) -> tuple[dict[str, Any], list[Row]]:
    data = write(tmp_path / "data.jsonl", rows)
    stats = prepare(data_settings(data=(data,), answers="given", **values), USED, tmp_path / "out")
    return stats, rows_in(tmp_path / "out")


def test_given_answers(tmp_path: Path) -> None:
    stats, rows = given(tmp_path, chats())
    texts = {text for row in rows for text in answers_in(row, USED)}
    assert texts == {f"The answer {i}<|im_end|>" for i in range(COUNT)} | {"It depends<|im_end|>"}
    assert (stats["train"]["rows"], stats["valid"]["rows"]) == (36, 4)
    assert stats["read"] == {"given_answers": COUNT}
    assert stats["dropped"] == stats["turns_left_out"] == stats["ended_early"] == stats["cut"] == {}
    assert stats["train"]["loss_tokens"] == read_token_counts(stats).total()
    assert stats["template"] == USED.record()
    assert stats["settings"]["answers"] == "given"
    assert read_stats(tmp_path / "out") == stats


def test_the_targets_own_answers(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", chats(12))
    target, kept = TinyTarget(USED, at_a_time=1), []
    settings = data_settings(data=(data,), conversations_at_once=5, group=4, max_new_tokens=40)
    stats = prepare(settings, USED, tmp_path / "out", target, lambda rows, over: kept.append((rows, over)))
    rows = rows_in(tmp_path / "out")
    # By its key, each row is what the target read and wrote.
    for row in rows:
        turn, answer = target.said[row.key]
        assert row.token_ids.tolist() == [*turn.prompt_token_ids, *answer.token_ids]
    learnt = [id for row in rows for id in row.token_ids[row.loss_mask].tolist()]
    assert sorted(learnt) == sorted(id for _, answer in target.said.values() for id in answer.token_ids)
    assert "It depends" not in "".join(USED.tokenizer.decode(row.token_ids) for row in rows)
    assert stats["read"] == {"answered_by_target": 12}
    assert [row.key for group, _ in kept for row in group] == sorted(
        (row.key for row in rows), key=[row.key for group, _ in kept for row in group].index
    )
    assert [len(over) for _, over in kept] == [4, 4, 4]
    for group, over in kept:
        assert {conversation_of(row.key) for row in group} <= set(over)
    # Conversations of the next group begin before the last of a group is over.
    assert target.running.count(5) > len(target.running) / 2
    assert max(target.running) == 5
    assert target.abandoned == 0


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", chats(8))
    settings = data_settings(data=(data,), max_new_tokens=20, conversations_at_once=3, group=2)
    for name, at_a_time in (("a", None), ("b", 1)):  # whatever is answered first
        prepare(settings, USED, tmp_path / name, TinyTarget(USED, at_a_time))
    contents = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert contents[0] == contents[1]
    prepare(settings, USED, tmp_path / "b", Scripted(USED, ["yes", "no"]))
    assert contents[0]["train.parquet"] != (tmp_path / "b" / "train.parquet").read_bytes()


def test_of_a_mix_about_half_are_the_targets_own(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", [*chats(), {"prompt": "One?"}])
    target = Scripted(USED, ["yes", "no"])
    stats = prepare(data_settings(data=(data,), answers="mix"), USED, tmp_path / "out", target)
    asked = stats["read"]["answered_by_target"]
    assert stats["read"] == {"answered_by_target": asked, "given_answers": COUNT + 1 - asked}
    assert COUNT / 4 < asked < COUNT * 3 / 4
    own = [row for row in rows_in(tmp_path / "out") if answers_in(row, USED)[0] == "yes<|im_end|>"]
    assert len(own) == asked
    assert any("One?" in USED.tokenizer.decode(row.token_ids) for row in own)


def test_each_form_of_a_row(tmp_path: Path) -> None:
    rows = [
        *chats(10),
        {"text": "One two three"},
        {"token_ids": [20, 21, 22], "loss_mask": [0, 1, 1]},
        {"prompt": "Why?"},
    ]
    stats, found = given(tmp_path, rows)
    assert stats["read"] == {"given_answers": 11, "text": 1, "prepared": 1}
    assert stats["dropped"] == {"no_answer": 1}
    by_text = {USED.tokenizer.decode(row.token_ids): row for row in found}
    assert by_text["One two three"].loss_mask.tolist() == [False] + [True] * (len(by_text["One two three"]) - 1)
    assert any(row.token_ids.tolist() == [20, 21, 22] for row in found)


def test_what_is_dropped_or_cut_is_counted(tmp_path: Path) -> None:
    looping = {"messages": [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "0" * 300}]}
    merging = chats(30)[20]
    merging["messages"][1]["content"] = "\nyes"
    picture = {"messages": [{"role": "user", "content": [{"type": "image"}]}]}
    rows = [*chats(20), *chats(2), looping, merging, picture, {"text": "yes " * 10}, {"text": "Why " * 3 + "no " * 90}]
    stats, _ = given(tmp_path, rows, max_length=90)
    assert stats["dropped"] == {"content_is_not_text": 1, "duplicate": 2}
    assert stats["turns_left_out"] == {"tokens_merge_at_the_border": 1}
    assert stats["cut"] == {"loop": 2, "max_length": 2}
    assert stats["read"] == {"given_answers": 22, "text": 2, "unusable": 3}


def test_samples_and_tokens_end_the_reading(tmp_path: Path) -> None:
    stats, _ = given(tmp_path, chats(), samples=10)
    assert stats["read"] == {"given_answers": 10}
    each = stats["train"]["loss_tokens"] // stats["train"]["rows"]
    stats, rows = given(tmp_path, chats(), tokens=12 * each, group=3)
    assert 12 * each <= sum(row.loss_tokens for row in rows) < 18 * each
    assert stats["read"]["given_answers"] in (12, 15)


def test_what_is_asked_beyond_enough_tokens_is_abandoned(tmp_path: Path) -> None:
    data, target = write(tmp_path / "data.jsonl", chats(30)), TinyTarget(USED, at_a_time=1)
    settings = data_settings(data=(data,), tokens=100, max_new_tokens=20, conversations_at_once=6, group=3)
    stats = prepare(settings, USED, tmp_path / "out", target)
    assert stats["read"]["answered_by_target"] < 30
    assert target.abandoned > 0
    assert not target.waiting


@pytest.mark.parametrize("group", [1, 7, 64])
def test_groups_are_full_and_no_more_is_held_than_there_is_room_for(tmp_path: Path, group: int) -> None:
    settings = data_settings(
        data=(write(tmp_path / "data.jsonl", chats()),),
        max_length=100,
        max_new_tokens=30,
        conversations_at_once=4,
        group=group,
    )
    target, read = TinyTarget(USED, at_a_time=1), []
    prepare(settings, USED, tmp_path / "out", target, lambda rows, over: read.append(len(over)))
    assert read == [group] * (COUNT // group) + [COUNT % group] * bool(COUNT % group)
    assert max(target.running) == 4


@pytest.mark.parametrize("at_a_time", [None, 1])
def test_what_cannot_be_read_is_told_when_all_before_it_was_kept(tmp_path: Path, at_a_time: int | None) -> None:
    data = write(tmp_path / "data.jsonl", [*chats(10), *[{"messages": 7}] * (FEW + 1), *chats(20)[10:]])
    values = {"data": (data,), "max_new_tokens": 20, "conversations_at_once": 6, "group": 4}
    kept: list[int] = []
    settings, target = data_settings(**values), TinyTarget(USED, at_a_time)
    with pytest.raises(ConfigurationError, match=r"^9 of the first 19 rows .* line 11 has a int as messages; .*"):
        prepare(settings, USED, tmp_path / "out", target, lambda rows, over: kept.append(len(over)))
    assert kept == [4, 4, 2, 0]
    enough, target = data_settings(**values, tokens=20), TinyTarget(USED, at_a_time)
    assert prepare(enough, USED, tmp_path / "out", target)["read"] == {"answered_by_target": 4}


def test_a_few_rows_that_cannot_be_read_are_left_out_and_counted(tmp_path: Path) -> None:
    stats, rows = given(tmp_path, [{"conversations": []}, *chats(), {"conversations": [{"from": "a", "value": ""}]}])
    assert stats["dropped"] == {"unreadable": 2}
    assert remarks(stats) == []
    kept = {"train": {"rows": 36}, "valid": {"rows": 4}, "read": {"text": 20, "answered_by_target": 20}}
    assert remarks({**kept, "dropped": {"loop": 3, "duplicate": 2}, "ended_early": {"loop": 2, "tools": 1}}) == [
        "3 rows are left out: loop",
        "2 conversations end before their last turn: loop",
    ]
    assert stats["read"] == {"given_answers": COUNT, "unusable": 2}
    assert len(rows) == COUNT


def test_what_is_wrong_with_all_rows_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"\(unreadable 2\); the first unreadable one: .* line 1 has the keys a;"
    ):
        given(tmp_path, [{"a": "b"}] * 2)


def test_a_share_of_many_rows_may_be_unreadable(tmp_path: Path) -> None:
    rows = chats(100 * (FEW + 2))
    rows[500:500] = [{"prompt": ""}] * (FEW - 1)
    data = write(tmp_path / "data.jsonl", [*rows, *[{"prompt": ""}] * 3])
    readable, total = look_through((data, "hub:never/fetched"), None, USED.vocab_size)
    assert (readable.read, readable.unreadable, total) == (len(rows) + 3, FEW + 2, None)
    readable, total = look_through((data,), 400, USED.vocab_size)
    assert (readable.unreadable, total) == (0, 400)
    with open(data, "a") as file:
        file.write('{"prompt"')
    with pytest.raises(ConfigurationError, match="line 1011 is not JSON"):
        look_through((data,), None, USED.vocab_size)


def test_how_far_it_is_is_said_every_minute(tmp_path: Path) -> None:
    clock, lines = iter(range(0, 10_000, 25)), []  # as if 25 seconds went by from one look at it to the next
    progress = Progress(COUNT, lines.append, lambda: float(next(clock)))
    settings = data_settings(data=(write(tmp_path / "data.jsonl", chats()),), answers="given", group=10)
    stats = prepare(settings, USED, tmp_path / "out", progress=progress)
    assert stats["train"]["rows"] + stats["valid"]["rows"] == COUNT
    assert lines[0].startswith("30 of 40 rows read, 30 kept with ")
    assert lines[0].endswith("tokens to learn, 18 rows a minute, 0.0 hours left")


def test_rows_that_nobody_answers_are_not_all_read_beside_one_that_is(tmp_path: Path) -> None:
    settings = data_settings(data=("x",), conversations_at_once=2, group=4, max_new_tokens=20)
    read: list[Found] = []

    def found() -> Iterator[Found]:
        for one in [chat("What?"), *(Text(f"{n}", str(n)) for n in range(500))]:
            read.append(one)
            yield one

    first = next(answered_groups(found(), settings, USED, TinyTarget(USED)))
    assert (len(first.found), len(first.by_target)) == (4, 1)
    assert len(read) <= MOST_ROWS * 4


def test_data_that_were_prepared_are_data_again(tmp_path: Path) -> None:
    _, rows = given(tmp_path, chats())
    settings = data_settings(data=(str(tmp_path / "out"),), answers="given")
    stats = prepare(settings, USED, tmp_path / "again")
    again = rows_in(tmp_path / "again")
    assert {row.key: row.token_ids.tolist() for row in again} == {row.key: row.token_ids.tolist() for row in rows}
    assert [row.key for row in read_data(tmp_path / "again", "valid")] == [row.key for row in rows[-4:]]
    assert stats["read"] == {"prepared": COUNT}


def test_without_the_prefix_property_all_rows_are_dropped_and_that_is_said(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", [*chats(5), {"prompt": "Why?"}])
    settings = data_settings(data=(data,), answers="given")
    with pytest.raises(ConfigurationError) as error:
        prepare(settings, template(NO_PREFIX), tmp_path / "out")
    assert str(error.value) == ("of 6 rows in --data none is left to train on (prompt_is_no_prefix 5, no_answer 1).")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"data": ()}, "data is (), but tuple should have at least 1 item"),
        ({"max_length": 0}, "max_length is 0, but input should be greater than or equal to 8"),
        ({"samples": -1}, "samples is -1, but input should be greater than or equal to 1"),
        ({"answers": "mine"}, "answers is 'mine', but input should be 'target', 'given' or 'mix'"),
        ({"max_len": 8}, "max_len is 8, but extra inputs are not permitted"),
        ({"tokens": "many"}, "tokens is 'many', but input should be a valid integer"),
    ],
)
def test_settings_that_cannot_be_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        data_settings(**{"data": ("a.jsonl",)} | values)
    assert str(error.value).startswith(f"the data setting {sentence}")


def test_settings_do_not_change() -> None:
    settings = data_settings(data=("a.jsonl",))
    with pytest.raises(ValueError, match="frozen"):
        settings.samples = 7  # type: ignore[misc]


def test_answers_of_a_target_need_a_target(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"answers is 'target', but there is no target to ask; expected 'given'"
    ):
        prepare(data_settings(data=("a.jsonl",)), USED, tmp_path)

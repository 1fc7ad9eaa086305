"""From what was read to rows: whose answers are taken, and what becomes of rows without a conversation."""

from collections import Counter
from collections.abc import Sequence

from vllm_specext.training.data.answers import Answerer
from vllm_specext.training.data.conversation import Conversation, Found, Text
from vllm_specext.training.data.given import given_turns
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.regenerated import Room, regenerated_turns
from vllm_specext.training.data.row import Row, make_row
from vllm_specext.training.data.settings import DataSettings
from vllm_specext.training.data.tally import Tally
from vllm_specext.training.data.template import ChatTemplate
from vllm_specext.training.data.turns import AnsweredTurn, rows_of, turn_name

BY_TARGET, GIVEN, TEXT, PREPARED, UNUSABLE = "answered_by_target", "given_answers", "text", "prepared", "unusable"
"""Names under which rows of input are counted."""


def answered_rows(
    group: Sequence[Found], settings: DataSettings, template: ChatTemplate, answerer: Answerer | None, tally: Tally
) -> list[Row]:
    """The rows that ``group`` becomes, in its order."""
    conversations = [one for one in group if isinstance(one, Conversation)]
    own = [one for one in conversations if answerer is not None and _is_asked(one, settings.answers)]
    answered = {}
    if answerer is not None:
        room = Room(settings.max_length, settings.max_new_tokens)
        by_target = regenerated_turns(own, template, answerer, room)
        answered = {one.key: turns for one, turns in zip(own, by_target, strict=True)}
    others = [one for one in conversations if one.key not in answered]
    given = given_turns(others, template, settings.max_length)
    brought = {one.key: turns for one, turns in zip(others, given, strict=True)}
    rows: list[Row] = []
    for one in group:
        if isinstance(one, Reason):
            tally.read[UNUSABLE] += 1
            tally.dropped[one] += 1
        elif isinstance(one, Row):
            tally.read[PREPARED] += 1
            rows.append(one)
        elif isinstance(one, Text):
            tally.read[TEXT] += 1
            rows.append(_text_row(one, template))
        elif one.key in answered:
            tally.read[BY_TARGET] += 1
            rows += _conversation_rows(one, *answered[one.key], tally.ended_early, tally.dropped)
        else:
            tally.read[GIVEN] += 1
            rows += _conversation_rows(one, *brought[one.key], tally.turns_left_out, tally.dropped)
    return rows


def _is_asked(one: Conversation, answers: str) -> bool:
    """Whether the target answers ``one``."""
    if answers == "mix":
        # By the last digit of a hash: every second conversation, the same ones every time.
        return not one.answered or int(one.key[-1], 16) % 2 == 0
    return answers == "target"


def _conversation_rows(
    one: Conversation,
    turns: Sequence[AnsweredTurn],
    reasons: Counter[Reason],
    in_part: Counter[str],
    dropped: Counter[str],
) -> list[Row]:
    """The rows of ``one``. Why turns are missing is counted ``in_part``, or once as ``dropped`` if all are."""
    if turns:
        in_part.update(reasons)
    else:
        dropped[reasons.most_common(1)[0][0]] += 1
    return rows_of(turns, one.key)


def _text_row(one: Text, template: ChatTemplate) -> Row:
    ids = template.encode(one.text)
    # Nothing comes before the first token from which it could be learnt.
    return make_row(ids, [i > 0 for i in range(len(ids))], turn_name(one.key, 0))

"""From what was read to rows: what becomes of conversations, whoever answered them, and of rows without one."""

from collections import Counter
from collections.abc import Sequence

from vllm_specext.training.data.conversation import Conversation, Text
from vllm_specext.training.data.given import given_turns
from vllm_specext.training.data.groups import Group
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.row import Row, make_row
from vllm_specext.training.data.tally import Tally
from vllm_specext.training.data.template import ChatTemplate
from vllm_specext.training.data.turns import AnsweredTurn, rows_of, turn_name

BY_TARGET, GIVEN, TEXT, PREPARED, UNUSABLE = "answered_by_target", "given_answers", "text", "prepared", "unusable"
"""Names under which rows of input are counted."""


def answered_rows(group: Group, template: ChatTemplate, max_length: int, tally: Tally) -> list[Row]:
    """The rows that ``group`` becomes, in its order."""
    others = [one for one in group.found if isinstance(one, Conversation) and one.key not in group.by_target]
    given = given_turns(others, template, max_length)
    brought = {one.key: turns for one, turns in zip(others, given, strict=True)}
    rows: list[Row] = []
    for one in group.found:
        if isinstance(one, Reason):
            tally.read[UNUSABLE] += 1
            tally.dropped[one] += 1
        elif isinstance(one, Row):
            tally.read[PREPARED] += 1
            rows.append(one)
        elif isinstance(one, Text):
            tally.read[TEXT] += 1
            rows.append(_text_row(one, template))
        elif (by_target := group.by_target.get(one.key)) is not None:
            tally.read[BY_TARGET] += 1
            rows += _conversation_rows(one, by_target.turns, by_target.ended_early, tally.ended_early, tally.dropped)
        else:
            tally.read[GIVEN] += 1
            rows += _conversation_rows(one, *brought[one.key], tally.turns_left_out, tally.dropped)
    return rows


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

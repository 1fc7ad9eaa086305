"""Why something that was read is not in the rows. Everything is counted under one of these names."""

from enum import StrEnum


class Reason(StrEnum):
    """The names in ``stats.json``."""

    NOT_TEXT = "content_is_not_text"
    """A part of a message is a picture or the like."""
    NOT_UNICODE = "text_is_no_unicode"
    """Half a surrogate pair, which JSON can hold and no tokenizer reads."""
    TEMPLATE_REFUSED = "template_refused"
    """The chat template raised an error over the messages."""
    NOT_A_PREFIX = "prompt_is_no_prefix"
    """The prompt, as it is rendered, is not how the prompt with its answer begins."""
    MERGED = "tokens_merge_at_the_border"
    """The text of the prompt is such a prefix, but a token holds both its end and the answer's beginning."""
    NO_ANSWER = "no_answer"
    """There is nothing that an assistant says, or nothing to answer."""
    ANSWER_LOST = "answer_lost"
    """The target's answer could not be used."""
    PROMPT_TOO_LONG = "prompt_too_long"
    """The prompt leaves no room for an answer."""
    NO_LOSS_TOKEN = "no_loss_token"
    """No token is left that a drafter could learn."""
    DUPLICATE = "duplicate"
    """The same was there before."""
    UNFINISHED = "answer_unfinished"
    """The target did not end its answer, so that later turns would follow on half a sentence."""
    LOOP = "loop"
    """From here on the text repeats itself."""
    TOOLS = "tool_results"
    """Results of calls that the target itself may not make."""

"""A request's prediction of its answer: OpenAI's ``prediction`` becomes token ids, which are checked here.

Token ids travel in ``SamplingParams.extra_args`` to the scheduler and the workers. How much of the prediction the
answer has is counted at this end, by the definition of OpenAI's usage: tokens of the answer that were foretold, and
tokens of the prediction that are not among them. Neither depends on how many tokens were drafted.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from vllm_specext.engine.requests import PREDICTION, prediction_of
from vllm_specext.tree.place import Place

FORM = "{'type': 'content', 'content': a string or a list of {'type': 'text', 'text': a string}}"


def reads_predictions(config: Any) -> bool:
    """Whether the method of a ``SpecExtConfig`` drafts what requests predict."""
    return config.options.predicted is not None


def check_prediction(params: SamplingParams, model_config: Any) -> None:
    """Raise ``VLLMValidationError`` for token ids that the model does not have, and for more than its context holds."""
    ids = prediction_of(params)
    if ids is not None:
        check_ids(ids, model_config)


def check_ids(ids: Any, model_config: Any) -> None:
    """The same for what is to be token ids."""
    vocabulary, most = model_config.get_vocab_size(), model_config.max_model_len
    if isinstance(ids, list) and len(ids) > most:
        raise too_long(f"{len(ids)} tokens", most, PREDICTION)
    if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < vocabulary for token in ids):
        raise _refusal(f"{PREDICTION!r} must be a list of token ids from 0 to {vocabulary - 1}.", PREDICTION)


def text_of(prediction: Any) -> str:
    """The text of OpenAI's ``prediction``; ``VLLMValidationError`` where it has another form or is no text."""
    content = prediction.get("content") if isinstance(prediction, dict) else None
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or prediction.get("type") != "content" or not all(map(_is_part, content)):
        raise _refusal(f"'prediction' must be {FORM}.")
    text = "".join(part["text"] for part in content)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _refusal("'prediction' has half of a surrogate pair, which is no character.") from None
    return text


def too_long(size: str, most: int, parameter: str = "prediction") -> VLLMValidationError:
    return _refusal(f"{parameter!r} has {size}, but at most {most} tokens fit into the model's context.", parameter)


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _refusal(sentence: str, parameter: str = "prediction") -> VLLMValidationError:
    # Without the value: it may be large, and is the user's text.
    return VLLMValidationError(sentence, parameter=parameter)


class PredictionCount:
    """How much of a prediction the answers of a request have."""

    def __init__(self, ids: list[int], match: int) -> None:
        self._ids, self._match = np.array(ids), match
        self._places: dict[Any, Place] = {}

    def take(self, choice: Any, tokens: Iterable[int]) -> None:
        """Take note of further tokens of a choice, named by any key."""
        if choice not in self._places:
            self._places[choice] = Place(self._ids, self._match)
        self._places[choice].follow(tokens)

    def details(self) -> dict[str, int]:
        """OpenAI's two numbers, over all choices."""
        foretold = [place.foretold for place in self._places.values()]
        missing = (max(len(self._ids) - count, 0) for count in foretold)
        return {"accepted_prediction_tokens": sum(foretold), "rejected_prediction_tokens": sum(missing)}

"""What users ask for, as frozen models: values have the types of JSON, and what is wrong is one sentence."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_specext.errors import ConfigurationError
from vllm_specext.speculative_config import short

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]


class Frozen(BaseModel):
    """No other keys, no other types, and no changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], values: Mapping[str, Any], what: str) -> Model:
    """``values`` as a ``model``, or a sentence about the first that is wrong, which is called ``what``."""
    try:
        # JSON has lists where the models have tuples.
        return model.model_validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            allowed = ", ".join(model.model_fields)
            raise ConfigurationError(f"{what} {key!r} is unknown; allowed are {allowed}.") from None
        if first["type"] == "value_error":  # a sentence of ours about several keys
            raise ConfigurationError(f"{first['msg'].removeprefix('Value error, ')}.") from None
        message = first["msg"][0].lower() + first["msg"][1:]
        raise ConfigurationError(f"{what} {key!r} is {short(repr(first['input']))}, but {message}.") from None


def json_or_text(text: str) -> Any:
    """JSON, or else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

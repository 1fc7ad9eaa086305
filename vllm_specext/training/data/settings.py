"""What a preparation of data is asked to do."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_specext.errors import ConfigurationError
from vllm_specext.speculative_config import short
from vllm_specext.training.data.template import Flag


class DataSettings(BaseModel):
    """Frozen. `data_settings` makes one, with its errors as sentences."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    data: Annotated[tuple[str, ...], Field(min_length=1, description="files, folders, or hub:NAME[:SPLIT]")]
    answers: Literal["target", "given", "mix"] = Field(
        "target",
        description="whose answers are learnt: the target's own, those in the data, or the target's own in about every "
        "second conversation",
    )
    max_length: int = Field(2048, ge=8, le=2**20, description="tokens of the longest row")
    max_new_tokens: int = Field(2048, ge=1, le=2**20, description="tokens of the target's longest answer")
    samples: int | None = Field(None, ge=1, description="rows of the data to read; all by default")
    tokens: int | None = Field(
        None, ge=1, description="tokens in the loss after which no more is read; unlimited by default"
    )
    conversations_at_once: int = Field(
        64,
        ge=1,
        le=2**16,
        description="conversations that the target answers at once",
    )
    group: int = Field(64, ge=1, le=2**16, description="rows that are written together")
    template_flags: dict[str, Flag] = Field(
        default_factory=dict, description="for the chat template, such as enable_thinking"
    )


def data_settings(**values: Any) -> DataSettings:
    """The settings with these ``values``. ``ConfigurationError`` names the one that cannot be."""
    try:
        return DataSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"][0].lower() + first["msg"][1:]
        raise ConfigurationError(f"the data setting {key} is {short(repr(first['input']))}, but {message}.") from None

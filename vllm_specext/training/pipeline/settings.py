"""What the user asks a training for: the run's settings, checked before anything is read or loaded."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator

from vllm_specext.errors import ConfigurationError
from vllm_specext.speculative_config import short
from vllm_specext.training.choices import Answers, Numbers, Trained
from vllm_specext.training.recipes.named import recipe_of
from vllm_specext.training.recipes.staged import StagedKeys
from vllm_specext.training.recipes.values import Count, Frozen, json_or_text


class RunSettings(Frozen):
    """What a run is made from. Two runs with the same settings, of the same files, give the same drafter."""

    method: Trained
    target: Annotated[str, Field(min_length=1)]
    """A hub id, or an absolute path."""
    data: Annotated[tuple[str, ...], Field(min_length=1)]
    answers: Answers = "target"
    max_length: Annotated[int, Field(ge=16, le=2**20)] = 2048
    """The most tokens of a row, prompt and answers together."""
    samples: Count | None = None
    """The most rows that are read of the data."""
    tokens: Count | None = None
    """Preparing stops at so many tokens to learn."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    """Of the target's answers; its own generation config's, unless given."""
    template_flags: dict[str, bool | int | float | str] = Field(default_factory=dict)
    dtype: Numbers = "auto"
    """The target's type of numbers while it answers and is checked."""
    tensor_parallel: Count = 1
    ray: str | None = None
    """Of a cluster on which the target answers."""
    stream: bool = False
    """Features are kept only while the training needs them."""
    init: str | None = None
    licence: str | None = None
    log: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Trackers beside ``log.jsonl``."""
    recipe: SerializeAsAny[StagedKeys] = Field({}, validate_default=True)
    """The method's; its defaults, unless given."""

    @field_validator("recipe", mode="plain")
    @classmethod
    def _of_method(cls, values: Any, info: ValidationInfo) -> Any:
        if "method" not in info.data:
            return values  # which is refused for its method
        try:
            return recipe_of(info.data["method"], values)
        except ConfigurationError as error:
            raise ValueError(str(error).removesuffix(".")) from None


def default_processes(devices: int, values: Mapping[str, Any], packs: int) -> int:
    """One for each GPU, but for those that the target needs meanwhile, and for those that have no whole share of a
    step's ``packs``."""
    free = max(1, devices - (values["tensor_parallel"] if values["stream"] else 0))
    return max(number for number in range(1, free + 1) if packs % number == 0)


def check_stream(settings: RunSettings, processes: int, devices: int) -> None:
    """Refuse a training beside a target that has no GPUs of its own, or whose features nobody reads."""
    if not settings.stream:
        return
    if settings.method == "moa":
        raise ConfigurationError(
            "--stream is for methods that keep features of the target, griffin, eagle3, dflash, dspark and mtp; moa "
            "keeps none."
        )
    if 0 < devices < processes + settings.tensor_parallel:
        raise ConfigurationError(
            f"--stream needs a GPU for each of {processes} training processes (--processes), and besides "
            f"{settings.tensor_parallel} for the target (--tensor-parallel), but {devices} are here."
        )


def flags(given: Sequence[str]) -> dict[str, Any]:
    """Flags of the chat template, each ``NAME=VALUE``."""
    found = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not (name and equals):
            raise ConfigurationError(f"--template-flag is {short(repr(each))}, but must be NAME=VALUE.")
        found[name] = json_or_text(text)
    return found


def longest_row(given: int | None, context: int) -> int:
    """``--max-length``, by default 2048 or what a target with this ``context`` has room for."""
    most = context - 1  # a token is generated after every row that is given
    if given is not None and given > most:
        raise ConfigurationError(
            f"--max-length is {given}, but the target has max_position_embeddings {context}; at most {most} are "
            "allowed."
        )
    return min(2048, most) if given is None else given

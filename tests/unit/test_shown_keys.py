"""What people are shown of a key is what its method takes."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from vllm_specext.options.base import MethodOptions
from vllm_specext.options.shown import keys_of
from vllm_specext.registry import METHODS

FIELDS = [(name, key) for name, method in METHODS.items() for key in method.options.model_fields]


def takes(name: str, key: str, value: Any) -> bool:
    """Whether the method ``name`` takes this value of ``key``, whatever its other keys are."""
    options = METHODS[name].options
    try:
        options.model_validate({"method": name} | {key: value})
    except ValidationError as error:
        return all(one["loc"][:1] != (key,) for one in error.errors())
    return True


@pytest.mark.parametrize(("name", "key"), FIELDS)
def test_what_is_said_to_be_allowed_is_taken_and_what_is_beyond_is_refused(name: str, key: str) -> None:
    allowed = keys_of(METHODS[name].options)[key].allowed
    taken: list[Any]
    refused: list[Any]
    match allowed.split():
        case ["true", "or", "false"]:
            taken, refused = [True, False], ["true", 1]
        case [low, "to", high]:
            least, most = json.loads(low), json.loads(high)
            taken, refused = [least, most], [least - 1, most + 1]
        case ["at", "least", low]:
            taken, refused = [json.loads(low), 10**6], [json.loads(low) - 1]
        case ["above", "0,", *_]:
            taken, refused = [0.5], [0.0, 1.5]
        case ["a", "text"]:
            taken, refused = ["a"], [1]
        case ["a", "list"]:
            taken, refused = [[[1, 2, 3]]], ["a"]
        case _:
            taken, refused = [json.loads(value) for value in allowed.split(" or ")], ["another"]
    assert all(takes(name, key, value) for value in taken)
    assert not any(takes(name, key, value) for value in refused)


@pytest.mark.parametrize(("name", "key"), FIELDS)
def test_what_is_said_to_count_by_default_does(name: str, key: str) -> None:
    options: type[MethodOptions] = METHODS[name].options
    shown, field = keys_of(options)[key], options.model_fields[key]
    assert shown.required == field.is_required()
    if not shown.required and shown.in_words is None:
        assert json.loads(shown.absent) == field.default
    assert shown.meaning


def test_a_default_that_hangs_on_the_drafter_is_said_in_words() -> None:
    in_words = {(name, key) for name, key in FIELDS if keys_of(METHODS[name].options)[key].in_words}
    assert in_words == {(name, key) for name in ("dflash-tree", "dspark-tree") for key in ("tree_depth", "tree_top_k")}

"""The value of ``--speculative-config``, checked as far as possible without loading vLLM or weights."""

import json
from collections.abc import Mapping
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.source import check_config, check_place
from vllm_specext.options.check import parse
from vllm_specext.registry import METHODS

MAX_NESTING = 32
"""Lists and objects may be nested so deep. No key takes more than a few, and code that formats values needs an end."""

SHOWN = 60
"""Characters of a value that an error shows."""


def read(text: str) -> Any:
    """Read ``text`` as JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise ConfigurationError(f"--speculative-config is {short(text)}, which is not JSON: {error}.") from None


def keys(value: Any) -> dict[str, Any]:
    """The keys of ``--speculative-config`` in ``value``, with underscores for dashes, as vLLM reads them too."""
    if _nesting(value) > MAX_NESTING:
        raise _too_deep()
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"--speculative-config is {short(repr(value))}, but must be a JSON object, such as "
            """{"method": "griffin", "model": "FOLDER"}."""
        )
    found = {key.replace("-", "_"): each for key, each in value.items()}
    method = found.get("method")
    if not isinstance(method, str | None):
        raise ConfigurationError(
            f"speculative-config key 'method' is {short(repr(method))}, but must be a text, such as 'griffin'."
        )
    return found


FLAGS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
"""Engine arguments of vLLM that each stand for a key."""


def with_flags(found: Mapping[str, Any], arguments: Any) -> dict[str, Any]:
    """The keys ``found`` and those that vLLM's engine ``arguments`` ``--spec-method``, ``--spec-model`` and
    ``--spec-tokens`` stand for; ``ConfigurationError`` where both have one."""
    given = {argument: getattr(arguments, argument) for argument in FLAGS}
    given = {argument: value for argument, value in given.items() if value is not None}
    for argument in given:
        if FLAGS[argument] in found:
            flag = f"--{argument.replace('_', '-')}"
            raise ConfigurationError(
                f"speculative-config key {FLAGS[argument]!r} is given twice, with {flag} {given[argument]!r} too; one "
                "of the two is allowed."
            )
    return {**found, **{FLAGS[argument]: value for argument, value in given.items()}}


def check(value: Any) -> None:
    """Refuse a value that is no configuration. For our methods, also refuse wrong keys, a drafter that cannot be
    anywhere and one whose ``config.json`` is damaged. vLLM checks the keys of its own methods."""
    found = keys(value)
    method = found.get("method")
    if method in METHODS:
        parse(METHODS[method].options, found)
        if found.get("model") is not None:
            check_config(check_place(found["model"]))


def _nesting(value: Any) -> int:
    """How deep lists and objects are nested in ``value``, counted up to one more than is allowed."""
    depth, level = 0, [value]
    while depth <= MAX_NESTING:
        inner = [each for each in level if isinstance(each, Mapping | list)]
        if not inner:
            break
        depth += 1
        level = [each for one in inner for each in (one.values() if isinstance(one, Mapping) else one)]
    return depth


def _too_deep() -> ConfigurationError:
    return ConfigurationError(
        f"--speculative-config has lists and objects nested more than {MAX_NESTING} deep, which no key takes."
    )


def short(text: str) -> str:
    """Shorten ``text`` to what an error shows."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."

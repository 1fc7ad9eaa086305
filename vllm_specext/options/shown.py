"""A method's keys as people are shown them: what each may be, and what counts where it is absent."""

import json
from dataclasses import dataclass
from typing import Any

from vllm_specext.options.base import IN_WORDS, MethodOptions


@dataclass(frozen=True)
class Key:
    """A key of ``--speculative-config``."""

    required: bool
    default: Any
    """Its value where it is absent; ``None`` also where it is required, or has the default ``in_words``."""
    in_words: str | None
    """What counts where it is absent, if that depends on the drafter."""
    allowed: str
    meaning: str

    @property
    def absent(self) -> str:
        """What counts where it is absent: a value as it would be written, or words."""
        return self.in_words or json.dumps(self.default)


def keys_of(options: type[MethodOptions]) -> dict[str, Key]:
    """The keys of a method with these ``options``."""
    schema = options.model_json_schema()
    required = schema.get("required", [])
    return {
        name: Key(
            name in required,
            None if IN_WORDS in found else found.get("default"),
            found.get(IN_WORDS),
            _allowed(found),
            "selects this method" if name == "method" else found.get("description", ""),
        )
        for name, found in schema["properties"].items()
    }


def _allowed(schema: dict[str, Any]) -> str:
    """What a value with this JSON ``schema`` may be, but for null."""
    schema = next((each for each in schema.get("anyOf", []) if each["type"] != "null"), schema)
    if values := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return " or ".join(map(json.dumps, values))
    match schema["type"]:
        case "boolean":
            return "true or false"
        case "integer" | "number" as kind:
            return _range(schema) or f"any {kind}"
        case "array":
            return "a list"
        case _:
            return "a text"


def _range(schema: dict[str, Any]) -> str:
    if "minimum" in schema and "maximum" in schema:
        return f"{schema['minimum']} to {schema['maximum']}"
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    return ", ".join(f"{word} {schema[key]}" for key, word in words.items() if key in schema)

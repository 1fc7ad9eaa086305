"""Keys of a block drafter's configuration.

DFlash's checkpoints have their own in ``dflash_config``, DSpark's at the top; vLLM looks in both places.
"""

from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.stock.config import Drafter

SECTION = "dflash_config"
MAX_NUMBER = 10**6
"""Scales of released drafters are far below."""


class Keys:
    """Keys of a drafter's configuration, in its section or at the top."""

    def __init__(self, drafter: Drafter) -> None:
        self.place, self.config = drafter.place, drafter.config
        section = getattr(self.config, SECTION, None) or {}
        if not isinstance(section, dict):
            raise ConfigurationError(f"{self.place}: {SECTION} is {section!r}; expected a JSON object.")
        self.section: dict[str, Any] = section

    def __getitem__(self, key: str) -> Any:
        """``None`` where it is in neither."""
        return self.section.get(key, getattr(self.config, key, None))

    def name(self, key: str) -> str:
        """The key as a message names it."""
        return f"{SECTION}.{key}" if key in self.section else key

    def flag(self, key: str, default: bool) -> bool:
        value = self[key]
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigurationError(f"{self.place}: {self.name(key)} is {value!r}; expected true or false.")
        return value

    def section_flag(self, key: str) -> bool:
        """Of a key that counts in the section alone."""
        return key in self.section and self.flag(key, False)

    def section_integer(self, key: str, most: int) -> int:
        """A positive integer of at ``most`` so much, of a key that counts in the section alone."""
        value = self.section.get(key)
        if type(value) is not int or not 0 < value <= most:
            raise ConfigurationError(
                f"{self.place}: {SECTION}.{key} is {value!r}; expected a positive integer of at most {most}."
            )
        return value

    def number(self, key: str, default: float) -> float:
        """A positive number."""
        value = self[key]
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MAX_NUMBER:
            raise ConfigurationError(
                f"{self.place}: {self.name(key)} is {value!r}; expected a positive number below {MAX_NUMBER}."
            )
        return float(value)

    def require(self, key: str, value: bool) -> None:
        """Refuse another value than this, which is the default."""
        if self.flag(key, value) is not value:
            raise ConfigurationError(
                f"{self.place}: {self.name(key)} is {not value}; supported is {str(value).lower()} alone."
            )

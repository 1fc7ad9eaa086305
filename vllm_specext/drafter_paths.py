"""Places of drafters that vLLM takes for those of another method, because of a word in the path."""

from vllm_specext.errors import ConfigurationError

WORDS = ("eagle-", "eagle3", "dflash", "dspark")
"""In their order in vLLM's ``SpeculativeConfig``."""
TOLD = ("eagle", "eagle3", "dflash", "dspark")
"""vLLM's methods that it does not guess from the path."""


def refuse_misread(role: str, path: str, stock_method: str) -> None:
    """Refuse the ``path`` of a drafter that vLLM loads for its method ``stock_method``, where it would guess another
    one. ``role`` names the path in the message."""
    word = next((word for word in WORDS if word in path.lower()), None)
    if word is not None and stock_method not in TOLD:
        raise ConfigurationError(
            f"{role} is {path!r}: with {word!r} in its path vLLM takes a drafter for one of another method; it has to "
            "lie under another name."
        )

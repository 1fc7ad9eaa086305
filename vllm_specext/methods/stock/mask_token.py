"""Drafters that draft all positions at once, told by their configuration: it names a token that stands for all that is
not known yet. They have EAGLE-3's classes (P-EAGLE, arXiv 2602.01469) or are language models (PARD, arXiv 2504.18583).
"""

from typing import Any

from vllm_specext.errors import ConfigurationError

P_EAGLE = "drafts all positions at once (P-EAGLE); method 'peagle-tree' serves it"
EITHER = "drafts all positions at once; method 'peagle-tree' serves P-EAGLE's, and 'pard-tree' serves PARD's"
MASK_TOKENS = ("mask_token_id", "pard_token", "ptd_token_id")
"""The keys that may name the token, in the order in which vLLM asks for them. Other drafters have the first, too."""


def refuse_all_at_once(place: str, raw: dict[str, Any]) -> None:
    """Refuse a drafter of EAGLE's methods, of which ``raw`` are the keys of its file, if it is P-EAGLE's or PARD's."""
    architectures = raw.get("architectures")
    if any(name.lower().startswith("peagle") for name in architectures or []):
        raise ConfigurationError(f"{place}: architectures is {architectures!r}: the drafter {P_EAGLE}.")
    for key in MASK_TOKENS[1:]:  # DFlash's and DSpark's drafters have the first
        if raw.get(key) is not None:
            raise ConfigurationError(f"{place}: {key} is {raw[key]!r}: the drafter {EITHER}.")
    if raw.get("speculators_model_type") == "peagle":
        raise ConfigurationError(f"{place}: speculators_model_type is 'peagle': the drafter {P_EAGLE}.")


def check_mask_token(place: str, config: Any, one_by_one: str) -> int:
    """The token. Refuse any other drafter, which method ``one_by_one`` serves. ``config`` is what vLLM makes of its
    file."""
    found = {key: value for key in MASK_TOKENS if (value := getattr(config, key, None)) is not None}
    if not found:
        raise ConfigurationError(
            f"{place} has none of {', '.join(MASK_TOKENS)}: the drafter drafts one token after another; method "
            f"{one_by_one!r} serves it."
        )
    key, token = next(iter(found.items()))
    if type(token) is not int or not 0 <= token < config.vocab_size:
        raise ConfigurationError(
            f"{place}: {key} is {token!r}; expected a token below vocab_size = {config.vocab_size}."
        )
    return token

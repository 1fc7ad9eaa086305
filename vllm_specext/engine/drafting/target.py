"""Parts of the target's model that drafters share."""

from typing import Any


def language_model_of(target_model: Any) -> Any:
    """The language model of a target, which may be wrapped in a model of several modalities."""
    return target_model.get_language_model() if hasattr(target_model, "get_language_model") else target_model


def logits_processor_of(target_model: Any) -> Any:
    """The target's logits processor, in which some targets scale or cap their logits."""
    return language_model_of(target_model).logits_processor

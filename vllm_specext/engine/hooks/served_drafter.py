"""Serving a drafter by its own name, ``vllm serve DRAFTER``: its ``config.json`` names the target and the method."""

import os
from collections.abc import Callable
from typing import Any

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.source import is_hub_refusal
from vllm_specext.served_drafter import VERIFIER, refuse_drafter, resolve


@replaces(
    "vllm.engine.arg_utils.maybe_override_with_speculators",
    name="served drafters",
    why=(
        "where a drafter is served by its own name, vLLM looks for a relative target in the current directory, drops "
        "the method that the user asks for without a message, and shows a traceback for wrong keys"
    ),
    how=(
        "wrapped: where one of our methods is named, the target is looked for in the drafter's folder, vLLM's EAGLE "
        "drafters are served with trees on demand, and wrong keys are refused in a sentence; all others get vLLM's "
        "own answer"
    ),
    upstream="none known",
    until="vLLM lets plug-ins register speculative methods, and looks for the target in the drafter's folder",
    signature="model tokenizer trust_remote_code revision vllm_speculative_config hf_token kwargs",
)
def override_with_drafter(original: Callable) -> Callable:
    def maybe_override_with_speculators(
        model: str,
        tokenizer: str | None,
        trust_remote_code: bool,
        revision: str | None = None,
        vllm_speculative_config: Any = None,
        hf_token: bool | str | None = None,
        **kwargs: Any,
    ) -> Any:
        failure = None
        try:
            found = original(model, tokenizer, trust_remote_code, revision, vllm_speculative_config, hf_token, **kwargs)
            if found[2] is vllm_speculative_config:  # vLLM's answer where there are no such keys
                return found
        except (TypeError, ValueError) as error:  # wrong keys, perhaps with one of our methods
            failure = error
        served = resolve(model, _read_config(model, revision, hf_token), vllm_speculative_config)
        if served is None:
            if failure is not None:
                raise failure
            return found
        _check_hub(model, served.target, revision, hf_token)
        return served.target, tokenizer, served.speculative

    return maybe_override_with_speculators


def _read_config(model: str, revision: str | None, token: bool | str | None) -> dict[str, Any]:
    """The model's ``config.json`` as vLLM reads it, from its folder or from the hub."""
    import huggingface_hub
    from transformers import PreTrainedConfig

    offline = huggingface_hub.constants.HF_HUB_OFFLINE
    return PreTrainedConfig.get_config_dict(model, revision=revision, token=token, local_files_only=offline)[0]


def _check_hub(model: str, target: str, revision: str | None, token: bool | str | None) -> None:
    """Refuse a target that the hub does not give, or that is a drafter there."""
    if os.path.exists(target) or "://" in target:
        return
    try:
        config = _read_config(target, revision, token)
    except OSError as error:
        if error.__cause__ is not None and is_hub_refusal(error.__cause__):
            raise ConfigurationError(
                f"{model}/config.json: {VERIFIER} is {target!r}, which is no folder that is there, and cannot be "
                f"fetched from the hub ({type(error.__cause__).__name__})."
            ) from None
        return  # without a config.json it may be in another format, which vLLM knows
    refuse_drafter(model, target, config)

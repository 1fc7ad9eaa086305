"""Whether a checkpoint of a module alone, such as one that was trained further, fits its target."""

from pathlib import Path
from typing import Any

from vllm.transformers_utils.config import get_config

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import check_files, read_config
from vllm_specext.methods.mtp.modules import Modules, lacks_module
from vllm_specext.methods.stock.checkpoint import FILES
from vllm_specext.methods.stock.config import MAX_REASON
from vllm_specext.refusals import Launch

SIZES = (
    *("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
    *("num_hidden_layers", "moe_intermediate_size", "num_experts", "n_routed_experts", "kv_lora_rank"),
)
"""Keys of a configuration that a module's tensors, or their names, follow from."""


def check_module(directory: Path, modules: Modules, prefix: str, launch: Launch) -> None:
    """Raises ``ConfigurationError`` where its ``config.json`` is not like the target's, or no name of its tensors
    begins with ``prefix``."""
    place, target = directory / "config.json", launch.model
    whole = read_config(directory)
    wanted = list(target.hf_config.architectures)
    if whole.get("architectures") != wanted:
        raise ConfigurationError(
            f"{place}: architectures is {whole.get('architectures')!r}; a module's is the target's, {wanted!r}."
        )
    try:
        own = get_config(str(directory), trust_remote_code=False).get_text_config()
    except Exception as error:  # whatever a wrong value leads to
        reason = " ".join(str(error).split())[:MAX_REASON].rstrip(". ")
        raise ConfigurationError(
            f"{place} is not a configuration that vLLM reads: {type(error).__name__} {reason}."
        ) from error
    for key in (*SIZES, modules.key):
        found, expected = _number(own, key), _number(target.hf_text_config, key)
        if found != expected:
            raise ConfigurationError(f"{place}: {key} is {found!r} but the target has {expected!r}.")
    check_files(directory, FILES)
    if lacks_module(directory, prefix):
        raise ConfigurationError(
            f"{directory} has no multi-token prediction module: no name of its tensors begins with {prefix!r}."
        )


def _number(config: Any, key: str) -> Any:
    return getattr(config, key, None)

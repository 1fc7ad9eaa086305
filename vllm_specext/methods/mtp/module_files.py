"""Whether a checkpoint of a module alone, such as one that was trained further, fits its target."""

from collections.abc import Collection
from pathlib import Path

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import check_files, check_names, read_config
from vllm_specext.methods.mtp.modules import Modules, tensor_names
from vllm_specext.methods.stock.checkpoint import FILES
from vllm_specext.methods.stock.config import configuration
from vllm_specext.refusals import Launch

SIZES = (
    *("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
    *("num_hidden_layers", "moe_intermediate_size", "num_experts", "n_routed_experts", "kv_lora_rank"),
)
"""Keys of a configuration that a module's tensors, or their names, follow from."""


def check_module(directory: Path, modules: Modules, prefix: str, launch: Launch, targets: Collection[str]) -> None:
    """Raises ``ConfigurationError`` where its ``config.json`` is not like the target's, or its tensors have not the
    names of the ``targets`` own module, which begin with ``prefix``. The target may have none."""
    place, target = directory / "config.json", launch.model
    whole = read_config(directory)
    if target.quantization is not None or whole.get("quantization_config") is not None:
        raise ConfigurationError(
            f"speculative-config key 'model' is {str(directory)!r}, a module of its own, but the target or the module "
            "is quantised; vLLM's class reads a module as it reads the target, so that neither may be."
        )
    wanted = list(target.hf_config.architectures)
    if whole.get("architectures") != wanted:
        raise ConfigurationError(
            f"{place}: architectures is {whole.get('architectures')!r}; a module's is the target's, {wanted!r}."
        )
    own = configuration(directory).get_text_config()
    for key in (*SIZES, modules.key):
        found, expected = getattr(own, key, None), getattr(target.hf_text_config, key, None)
        if found != expected:
            raise ConfigurationError(f"{place}: {key} is {found!r} but the target has {expected!r}.")
    check_files(directory, FILES)
    names = list(tensor_names(directory))
    of_module = [name for name in names if name.startswith(prefix)]
    if names and not of_module:
        raise ConfigurationError(
            f"{directory} has no multi-token prediction module: no name of its tensors begins with {prefix!r}."
        )
    if names and targets:
        # Experts' matrices may be each on their own or together, and vLLM reads both.
        found, required = ([name for name in each if ".experts." not in name] for each in (of_module, targets))
        check_names(directory, "multi-token prediction module", found, required)

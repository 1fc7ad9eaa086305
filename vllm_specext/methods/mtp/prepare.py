"""What a target's own MTP module needs before vLLM builds its configuration: a target that has one, of a kind whose
trees have been run."""

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.stock.prepare import fields_of
from vllm_specext.options.trees import MtpTreeOptions
from vllm_specext.refusals import Launch

TARGETS = ("MiMoForCausalLM",)
"""Architectures of targets. vLLM has classes of many more, and drafts chains with them."""


def prepare(options: MtpTreeOptions, launch: Launch) -> Prepared:
    """Check the target. Raises ``ConfigurationError``."""
    architecture = launch.model.architecture
    if architecture not in TARGETS:
        raise ConfigurationError(
            f"method {options.method!r} cannot be combined with a target of the architecture {architecture!r}, whose "
            f"draft trees have not been run; {', '.join(TARGETS)} can, and vLLM's own method 'mtp' drafts chains."
        )
    # With several modules each drafts one position, and a level of a tree would need one module's caches for all.
    modules = getattr(launch.model.hf_config, "num_nextn_predict_layers", None)
    if modules != 1:
        raise ConfigurationError(
            f"the target's num_nextn_predict_layers is {modules!r}; method {options.method!r} needs one module, which "
            "is 1."
        )
    # vLLM's own way to name the target's checkpoint, with the target's quantisation.
    fields = {"model": launch.model.model_weights or launch.model.model, "quantization": launch.model.quantization}
    return Prepared({**fields_of(options), **fields})

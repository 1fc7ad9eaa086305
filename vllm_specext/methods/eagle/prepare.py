"""What vLLM's EAGLE drafters need before vLLM builds their configuration: a checkpoint that fits the target."""

from typing import Any

from vllm.model_executor.model_loader import get_model_cls
from vllm.model_executor.models.interfaces import supports_eagle3

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import MAX_DIMENSION, MAX_ROPE_FACTOR
from vllm_specext.methods.eagle.checkpoint import FILES, DrafterShape, check_checkpoint
from vllm_specext.methods.eagle.config import Drafter, drafter_shape, integer, read_drafter, target_layers
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.source import drafter_directory
from vllm_specext.options import StockDrafterOptions
from vllm_specext.refusals import Launch

ONLY_THE_TABLE = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embeddings in which the number of positions sizes the table, and changes no angle."""


def prepare(options: StockDrafterOptions, launch: Launch) -> Prepared:
    """Check the drafter against the target. Raises ``ConfigurationError``."""
    directory = drafter_directory(options.model, options.revision, FILES)
    if options.stock_method == "eagle3":
        check_target(options.method, launch)
    drafter = read_drafter(directory, options, launch.model.trust_remote_code)
    vocabulary, hidden_size = launch.model.get_vocab_size(), launch.model.get_hidden_size()
    if (own := getattr(drafter.config, "vocab_size", None)) != vocabulary:
        raise ConfigurationError(f"{drafter.place}: vocab_size is {own!r} but the target has {vocabulary}.")
    overrides = _positions(drafter, launch.model.max_model_len)
    states = 1
    if options.stock_method == "eagle3":
        layers = target_layers(drafter, launch.model.get_total_num_hidden_layers())
        states = len(layers)
        overrides |= {
            "eagle_aux_hidden_state_layer_ids": layers,
            "num_aux_hidden_states": states,
            "target_hidden_size": hidden_size,
        }
    most = vocabulary
    if drafter.is_known:
        shape = drafter_shape(drafter, states, hidden_size)
        _check_hidden_size(drafter, shape)
        check_checkpoint(directory, shape)
        most = shape.draft_vocab_size
    if options.tree_top_k > most:
        raise ConfigurationError(
            f"speculative-config key 'tree_top_k' is {options.tree_top_k}, but the drafter's vocabulary has {most} "
            "tokens."
        )
    ours = {"method", "model", "revision", "adaptive_drafts", "tree_depth", "tree_top_k"}
    fields = options.model_dump(exclude=ours, exclude_none=True)
    return Prepared({**fields, "model": str(directory)}, overrides)


def check_target(method: str, launch: Launch) -> None:
    """Refuse a target whose class in vLLM does not give hidden states of its layers."""
    if not supports_eagle3(get_model_cls(launch.model)):
        raise ConfigurationError(
            f"method {method!r} cannot be combined with a target of the architecture "
            f"{launch.model.architecture!r}, because vLLM's class for it does not give hidden states of its layers."
        )


def check(options: StockDrafterOptions, config: Any) -> None:
    """Look at the configuration that vLLM has made of the drafter's.

    Raises ``ConfigurationError``.
    """
    drafter = config.draft_model_config
    if drafter.use_mla:
        raise ConfigurationError(
            f"method {options.method!r} cannot be combined with a drafter of the architecture "
            f"{drafter.architecture!r}, because tree attention does not read a latent cache (MLA)."
        )


def _check_hidden_size(drafter: Drafter, shape: DrafterShape) -> None:
    target = shape.target_hidden_size
    said = getattr(drafter.config, "target_hidden_size", None)
    if shape.is_eagle3 and said not in (None, target):
        raise ConfigurationError(f"{drafter.place}: target_hidden_size is {said!r} but the target's is {target}.")
    if shape.hidden_size != target and (said is None or not shape.is_eagle3):
        another = "; another one needs target_hidden_size" if shape.is_eagle3 else ""
        raise ConfigurationError(
            f"{drafter.place}: hidden_size is {shape.hidden_size} but the target's is {target}{another}."
        )


def _positions(drafter: Drafter, context: int) -> dict[str, Any]:
    """No position lies after the target's context, and the file's numbers would size the rotary table."""
    rope = getattr(drafter.config, "rope_parameters", None) or {}
    if not isinstance(rope, dict):
        raise ConfigurationError(f"{drafter.place}: rope_parameters is {rope!r}; expected a JSON object.")
    limits = {"factor": MAX_ROPE_FACTOR, "original_max_position_embeddings": MAX_DIMENSION}
    for key, most in limits.items():
        value = rope.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            raise ConfigurationError(
                f"{drafter.place}: rope_parameters.{key} is {value!r}; expected a positive number of at most {most}."
            )
    if rope.get("rope_type", "default") in ONLY_THE_TABLE:
        return {"max_position_embeddings": context}
    integer(drafter.place, drafter.config, "max_position_embeddings")
    return {}

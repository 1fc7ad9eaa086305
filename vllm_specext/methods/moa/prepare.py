"""What MoA needs before vLLM builds its configuration: the checkpoint's folder, checked, and the widths in its
tensors."""

from dataclasses import asdict
from typing import Any

from vllm_specext.engine.draft_vocabulary import draft_vocabulary
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.draft_vocabulary import KEYS as VOCABULARY_KEYS
from vllm_specext.methods.moa.checkpoint import MoAShape, TargetSizes, check_against_target, read_shape
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.source import drafter_directory
from vllm_specext.options.base import CHOICE_KEYS
from vllm_specext.options.trees import TREE_KEYS, MoAOptions
from vllm_specext.refusals import LLAMA_LIKE, Launch


def prepare(options: MoAOptions, launch: Launch) -> Prepared:
    """Check the drafter against the target. Raises ``ConfigurationError``."""
    from vllm_specext.methods.moa.config import register

    register()
    target = launch.model
    directory = drafter_directory(options.model, options.revision)
    shape = read_shape(directory)
    layers = target.hf_text_config.num_hidden_layers
    sizes = TargetSizes(
        hidden_size=target.get_hidden_size(),
        vocab_size=target.get_vocab_size(),
        layers=layers,
        kv_width=2 * target.get_total_num_kv_heads() * target.get_head_size(),
    )
    check_against_target(shape, sizes)
    inference = shape.target_layer_inference
    if options.target_layer_inference is not None:
        inference = options.target_layer_inference
        if inference > layers:
            raise ConfigurationError(
                f"speculative-config key 'target_layer_inference' is {inference}, but the target has {layers} layers: "
                f"at most {layers} are allowed."
            )
    architecture = target.architectures[0]
    if inference > 0 and architecture not in LLAMA_LIKE:
        raise ConfigurationError(
            f"method 'moa' with target_layer_inference {inference} cannot run the last layers of a {architecture}; it "
            f"knows {', '.join(LLAMA_LIKE)}, and target_layer_inference 0 works with others."
        )
    if inference > 0 and launch.arguments.enable_lora:
        raise ConfigurationError(
            f"method 'moa' with target_layer_inference {inference} cannot be combined with --enable-lora, because the "
            "target's last layers would run over drafted tokens without their adapters; target_layer_inference 0 can."
        )
    own = {"method", "model", "revision", "target_layer_inference"}
    ours = own | CHOICE_KEYS | TREE_KEYS | set(VOCABULARY_KEYS)
    fields = options.model_dump(exclude=ours, exclude_none=True)
    vocabulary = draft_vocabulary(options, launch, directory)
    return Prepared({**fields, "model": str(directory)}, _overrides(shape, inference), vocabulary)


def _overrides(shape: MoAShape, target_layer_inference: int) -> dict[str, Any]:
    rotary: dict[str, Any] = {"rope_type": "default"}
    if shape.rope_scaling is not None:
        rotary = asdict(shape.rope_scaling)
        rotary["rope_type"] = rotary.pop("kind")
    return {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.self_attention.mlp_size,
        "num_hidden_layers": 2,
        "num_attention_heads": shape.self_attention.heads,
        "num_key_value_heads": shape.self_attention.kv_heads,
        "head_dim": shape.self_attention.head_dim,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {**rotary, "rope_theta": shape.rope_theta},
        "max_position_embeddings": shape.max_position_embeddings,
        "tie_word_embeddings": False,
        "target_layer_inference": target_layer_inference,
        "moa_shape": asdict(shape),
    }

"""What MoA needs before vLLM builds its configuration: the checkpoint's folder, checked, and the widths in its
tensors."""

from dataclasses import asdict
from typing import Any

from vllm_specext.architectures import LLAMA_LIKE
from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.draft_vocabulary import draft_vocabulary
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.moa.checkpoint import MoAShape, TargetSizes, check_against_target, read_shape
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.source import drafter_directory
from vllm_specext.options.trees import MoAOptions
from vllm_specext.refusals import Launch


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
    if options.client_drafts:
        serve_clients(options, launch)
    vocabulary = draft_vocabulary(options, launch, directory)
    return Prepared(options.for_vllm(model=str(directory)), _overrides(shape, inference), vocabulary, options)


ROWS = "vllm_specext.engine.clients.kept_rows.TakesClientRows"
"""What vLLM's workers learn, so that rows can be taken from them."""


@replaces(
    "vllm.config.parallel.ParallelConfig.worker_extension_cls",
    name="rows for clients",
    why="clients that draft need the keys and values that the drafter has made of the text, which are in the worker",
    how="set to a class with one method where client_drafts is true; another class is refused",
    upstream="vLLM's own setting",
    until="always",
    kind="set",
)
def serve_clients(options: MoAOptions, launch: Launch) -> None:
    """Prepare the launch of a server whose clients draft. Raises ``ConfigurationError``."""
    parallel = launch.parallel
    for name, value in (
        ("--tensor-parallel-size", parallel.tensor_parallel_size),
        ("--data-parallel-size", parallel.data_parallel_size),
    ):
        if value > 1:
            raise ConfigurationError(f"speculative-config key 'client_drafts' needs {name} 1, but it is {value}.")
    if options.prediction_tokens:
        raise ConfigurationError(
            f"speculative-config key 'prediction_tokens' is {options.prediction_tokens}, but with client_drafts it "
            "must be 0."
        )
    if options.tree is None:
        raise ConfigurationError("speculative-config key 'client_drafts' needs draft trees: tree_top_k above 1.")
    if parallel.worker_extension_cls not in ("", ROWS):
        raise ConfigurationError(
            f"--worker-extension-cls is {parallel.worker_extension_cls!r}, but with client_drafts it must not be given."
        )
    parallel.worker_extension_cls = ROWS


def _overrides(shape: MoAShape, target_layer_inference: int) -> dict[str, Any]:
    rotary = {"rope_type": "default"} if shape.rope_scaling is None else shape.rope_scaling.as_config()
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

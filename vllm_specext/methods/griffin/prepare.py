"""What GRIFFIN needs before vLLM builds its configuration: the checkpoint's folder, checked, and the widths in its
tensors."""

from pathlib import Path
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin.checkpoint import check_against_target, read_shape
from vllm_specext.options import GriffinOptions

FILES = ["config.json", "model.safetensors", "pytorch_model.bin"]


def prepare(options: GriffinOptions, target: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values for vLLM's own speculative keys, and overrides of the drafter's ``config.json``.

    ``target`` is the target's ``ModelConfig``. Raises ``ConfigurationError``.
    """
    directory = _directory(options.model, options.revision)
    shape = read_shape(directory)
    check_against_target(shape, target.get_hidden_size(), target.get_vocab_size())
    ours = {"method", "model", "revision", "tree_depth", "tree_top_k"}
    fields = options.model_dump(exclude=ours, exclude_none=True)
    overrides = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.mlp_size,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "max_position_embeddings": shape.max_position_embeddings,
        "qkv_bias": shape.qkv_bias,
        "tgf_size": shape.tgf_size,
        "tie_word_embeddings": False,
    }
    return {**fields, "model": str(directory)}, overrides


def _directory(model: str, revision: str | None) -> Path:
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or model.startswith(("./", "../", "~")) or model.count("/") != 1:
        raise ConfigurationError(
            f"speculative-config key 'model' is {model!r}, which is neither a directory nor a hub id (owner/name)."
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=FILES))
    except Exception as error:  # the hub client raises many kinds; each means that the drafter cannot be had
        raise ConfigurationError(
            f"speculative-config key 'model' is {model!r}, which is no directory and cannot be fetched from the hub "
            f"({type(error).__name__})."
        ) from None

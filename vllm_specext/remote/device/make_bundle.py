"""A bundle for clients, made where the target and its drafter are."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import SAFETENSORS, read_object
from vllm_specext.methods.end_ids import end_ids
from vllm_specext.methods.moa.checkpoint import read_shape, read_tensors
from vllm_specext.options.trees import MoAOptions
from vllm_specext.remote.device.bundle import CONFIG, EMBEDDING, HEAD, Bundle
from vllm_specext.remote.fingerprint import fingerprint
from vllm_specext.training.pipeline.target import read_target
from vllm_specext.training.pipeline.target_ends import TargetEnds

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
ENDS = ("generation_config.json", "config.json")


def make(target: str, drafter: Path, folder: Path, dtype: torch.dtype) -> Bundle:
    """Write the bundle of a MoA ``drafter`` for its ``target``, weights in ``dtype``, to a ``folder``.

    Raises ``ConfigurationError`` where the drafter is not one, is for another target, or needs the target's layers.
    """
    shape = read_shape(drafter)
    model = read_target(target, weights=True)
    if shape.target_layer_inference:
        raise ConfigurationError(
            f"{drafter} runs the target's last {shape.target_layer_inference} layers, which clients do not have; only "
            "drafters with target_layer_inference 0 can be bundled."
        )
    if (shape.hidden_size, shape.vocab_size) != (model.hidden_size, model.vocab_size):
        raise ConfigurationError(
            f"{drafter} is for a target with hidden size {shape.hidden_size} and {shape.vocab_size} tokens, but "
            f"{target} has {model.hidden_size} and {model.vocab_size}."
        )
    if not (drafter / SAFETENSORS).is_file():
        raise ConfigurationError(f"{drafter} has no {SAFETENSORS}; convert its pytorch_model.bin first.")
    ends, defaults = TargetEnds(model), MoAOptions.model_fields
    embedding = ends.get_input_embeddings().weight
    bundle = Bundle(
        target=target,
        fingerprint=fingerprint(drafter / SAFETENSORS),
        vocab_size=shape.vocab_size,
        self_attention=shape.self_attention,
        cross_attention=shape.cross_attention,
        rms_norm_eps=shape.rms_norm_eps,
        rope_theta=shape.rope_theta,
        rope_scaling=shape.rope_scaling,
        ends=_ends(model.folder),
        tied=embedding.data_ptr() == ends.head.data_ptr(),
        nodes=defaults["num_speculative_tokens"].default,
        depth=defaults["tree_depth"].default,
        top_k=defaults["tree_top_k"].default,
    )
    found = read_tensors(drafter) | {EMBEDDING: embedding, HEAD: ends.head}
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: found[name].to(dtype).contiguous() for name in bundle.tensor_shapes()}
    save_file(stored, folder / SAFETENSORS, metadata={"format": "pt"})
    for name in TOKENIZER:
        if (model.folder / name).is_file():
            shutil.copyfile(model.folder / name, folder / name)
    (folder / CONFIG).write_text(bundle.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return bundle


def _ends(folder: Path) -> list[int]:
    """Of all of the target's files, as the server has them."""
    files = (read_object(folder / name) for name in ENDS if (folder / name).is_file())
    return sorted(end_ids(*((file.get("text_config") or file).get("eos_token_id") for file in files)))

"""GRIFFIN checkpoints on disk: what is in one, whether it is sound, reading it and writing it.

A checkpoint is a folder with ``config.json`` and ``model.safetensors`` or, as released, ``pytorch_model.bin``. Widths
are read from the tensors, because released configurations do not always agree with them; the configuration adds only
what shapes cannot tell. `read_shape` looks at names and shapes without reading the weights. Whatever is wrong with the
files becomes a `ConfigurationError` that names the file and the tensor or key; nothing in a file is ever executed.
"""

import json
import math
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm_specext.methods.griffin.model import GriffinDrafter

SAFETENSORS = "model.safetensors"
BIN = "pytorch_model.bin"
MAX_DIMENSION = 2**24
"""No real vocabulary or width comes near; larger numbers are damage."""

DEFAULT_ROPE_THETA = 10000.0
"""Released configurations of LLaMA2 and Vicuna drafters leave the key out."""

_FLOATS = ("F64", "F32", "F16", "BF16")
_ATTENTION = "layers.0.self_attn"


@dataclass(frozen=True)
class GriffinShape:
    """All that is needed to build a drafter."""

    vocab_size: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    tgf_size: int
    """Width of the expansion in the token-guided fusion; equal to ``mlp_size`` in all released checkpoints."""
    qkv_bias: bool
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The names in a checkpoint, in the order in which they are checked, with their shapes."""
        d, q, kv = self.hidden_size, self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (self.vocab_size, d),
            "fc.fc.weight": (d, 2 * d),
            "fc.fc.bias": (d,),
            "fc.post_attention_layernorm.weight": (d,),
            "fc.mlp.input_layernorm.weight": (d,),
            "fc.mlp.up_proj.weight": (self.tgf_size, 2 * d),
            "fc.mlp.down_proj.weight": (d, self.tgf_size),
            f"{_ATTENTION}.q_proj.weight": (q, d),
            f"{_ATTENTION}.k_proj.weight": (kv, d),
            f"{_ATTENTION}.v_proj.weight": (kv, d),
            f"{_ATTENTION}.o_proj.weight": (d, q),
            "layers.0.post_attention_layernorm.weight": (d,),
            "layers.0.mlp.gate_proj.weight": (self.mlp_size, d),
            "layers.0.mlp.up_proj.weight": (self.mlp_size, d),
            "layers.0.mlp.down_proj.weight": (2 * d, self.mlp_size),
        }
        if self.qkv_bias:
            shapes |= {f"{_ATTENTION}.{x}_proj.bias": (q if x == "q" else kv,) for x in "qkv"}
        return shapes


_BIASES = tuple(f"{_ATTENTION}.{x}_proj.bias" for x in "qkv")
_REQUIRED = tuple(GriffinShape(1, 1, 1, 1, 1, 1, 1, False, 0.0, 0.0, 1).tensor_shapes())


def read_shape(directory: Path) -> GriffinShape:
    """Check ``config.json`` and the names and shapes of all tensors in ``directory``."""
    config = _read_config(directory)
    path = _weights_file(directory)
    found = _read_tensor_shapes(path)
    _check_names(path, found)
    for name, sizes in found.items():
        if any(not 1 <= size <= MAX_DIMENSION for size in sizes):
            raise ConfigurationError(
                f"{path}: tensor {name} has shape {list(sizes)}; every size must be in 1..{MAX_DIMENSION}."
            )

    def rows(name: str) -> int:
        return _matrix(path, name, found[name])[0]

    vocab_size, hidden_size = _matrix(path, "embed_tokens.weight", found["embed_tokens.weight"])
    heads, kv_heads, head_dim = _heads(
        directory, path, config, rows(f"{_ATTENTION}.q_proj.weight"), rows(f"{_ATTENTION}.k_proj.weight")
    )
    shape = GriffinShape(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_size=rows("layers.0.mlp.gate_proj.weight"),
        tgf_size=rows("fc.mlp.up_proj.weight"),
        qkv_bias=_BIASES[0] in found,
        rms_norm_eps=_positive(directory, config, "rms_norm_eps", float),
        rope_theta=_rope_theta(directory, config),
        max_position_embeddings=_positive(directory, config, "max_position_embeddings", int),
    )
    for name, wanted in shape.tensor_shapes().items():
        if found[name] != wanted:
            raise ConfigurationError(f"{path}: tensor {name} has shape {list(found[name])}; expected {list(wanted)}.")
    return shape


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors that a `GriffinDrafter` has, by name, on the CPU and in the file's dtype."""
    path = _weights_file(directory)
    tensors = _load_bin(path, "cpu") if path.name == BIN else _load_safetensors(path)
    tensors = {name: tensor for name, tensor in tensors.items() if not _is_ignored(name)}
    _check_names(path, tensors)
    return tensors


def write_checkpoint(directory: Path, model: "GriffinDrafter", dtype: torch.dtype) -> None:
    """Write ``model`` to ``directory`` as ``config.json`` and ``model.safetensors``, weights in ``dtype``."""
    shape = model.shape
    config = {
        "architectures": ["GriffinForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.mlp_size,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": shape.max_position_embeddings,
        "vocab_size": shape.vocab_size,
        "pretraining_tp": 1,
        "qkv_bias": shape.qkv_bias,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, directory / SAFETENSORS, metadata={"format": "pt"})


def check_against_target(shape: GriffinShape, target_hidden_size: int, target_vocab_size: int) -> None:
    """Refuse a drafter that was trained for another target."""
    if shape.hidden_size != target_hidden_size:
        raise ConfigurationError(
            f"The GRIFFIN drafter has hidden size {shape.hidden_size} but the target's is {target_hidden_size}; "
            "they must be equal."
        )
    if shape.vocab_size != target_vocab_size:
        raise ConfigurationError(
            f"The GRIFFIN drafter has {shape.vocab_size} tokens in its vocabulary but the target has "
            f"{target_vocab_size}; they must be equal."
        )


def _is_ignored(name: str) -> bool:
    return name.endswith(".rotary_emb.inv_freq")


def _weights_file(directory: Path) -> Path:
    for name in (SAFETENSORS, BIN):
        if (directory / name).is_file():
            return directory / name
    raise ConfigurationError(f"{directory} has neither {SAFETENSORS} nor {BIN}.")


def _read_tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """From the header alone: no weight is read."""
    if path.name == BIN:
        found = {
            name: (tuple(tensor.shape), tensor.is_floating_point()) for name, tensor in _load_bin(path, "meta").items()
        }
    else:
        try:
            with safe_open(path, framework="pt") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                found = {name: (tuple(x.get_shape()), x.get_dtype() in _FLOATS) for name, x in slices.items()}
        except (SafetensorError, OSError) as error:
            raise _unreadable(path) from error
    for name, (_, is_floating) in found.items():
        if not is_floating:
            raise ConfigurationError(f"{path}: tensor {name} does not hold floating-point numbers.")
    return {name: shape for name, (shape, _) in found.items() if not _is_ignored(name)}


def _load_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path) from error


def _load_bin(path: Path, device: str) -> dict[str, Tensor]:
    try:
        loaded = torch.load(path, map_location=device, weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise ConfigurationError(
            f"{path} is damaged or holds something other than tensors, which is not loaded."
        ) from error
    except Exception as error:  # a damaged archive can fail in any layer of the reader
        raise _unreadable(path) from error
    if not isinstance(loaded, dict) or not all(isinstance(x, Tensor) for x in loaded.values()):
        raise ConfigurationError(f"{path} does not hold a mapping from names to tensors.")
    return {str(name): tensor for name, tensor in loaded.items()}


def _unreadable(path: Path) -> ConfigurationError:
    return ConfigurationError(f"{path} is truncated or damaged: its tensors cannot be read.")


def _check_names(path: Path, found: dict[str, Any]) -> None:
    required = (*_REQUIRED, *_BIASES) if any(name in found for name in _BIASES) else _REQUIRED
    missing = [name for name in required if name not in found]
    unexpected = sorted(name for name in found if name not in required)
    for problem, names in (("lacks", missing), ("has the unexpected", unexpected)):
        if names:
            listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            plural = "s" if len(names) > 1 else ""
            raise ConfigurationError(f"{path} is not a GRIFFIN checkpoint: it {problem} tensor{plural} {listed}.")


def _matrix(path: Path, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2:
        raise ConfigurationError(f"{path}: tensor {name} has shape {list(shape)}; expected two dimensions.")
    return shape[0], shape[1]


def _heads(directory: Path, path: Path, config: dict[str, Any], q_rows: int, kv_rows: int) -> tuple[int, int, int]:
    """Query heads, key/value heads and the size of one head."""
    heads = _positive(directory, config, "num_attention_heads", int)
    head_dim, rest = divmod(q_rows, heads)
    if rest or head_dim % 2:
        raise ConfigurationError(
            f"{path}: tensor {_ATTENTION}.q_proj.weight has {q_rows} rows, which num_attention_heads = {heads} of "
            "config.json does not divide into heads of an even size."
        )
    kv_heads, rest = divmod(kv_rows, head_dim)
    if rest or heads % kv_heads:
        raise ConfigurationError(
            f"{path}: tensor {_ATTENTION}.k_proj.weight has {kv_rows} rows; with {heads} query heads of size "
            f"{head_dim}, expected {head_dim} times a divisor of {heads}."
        )
    return heads, kv_heads, head_dim


def _read_config(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise ConfigurationError(f"{directory} is not a directory.")
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigurationError(f"{directory} has no config.json.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid JSON.") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{path} does not hold a JSON object.")
    for key, allowed in (("num_hidden_layers", (1, None)), ("hidden_act", ("silu", None))):
        if config.get(key) not in allowed:
            raise ConfigurationError(f"{path}: {key} is {config[key]!r}; a GRIFFIN drafter has {allowed[0]!r}.")
    return config


def _positive(directory: Path, config: dict[str, Any], key: str, kind: type[int] | type[float]) -> Any:
    value = config.get(key)
    allowed = (int,) if kind is int else (int, float)
    if (
        isinstance(value, bool)
        or not isinstance(value, allowed)
        or not (0 < value <= 2**31)
        or not math.isfinite(value)
    ):
        noun = "a positive integer" if kind is int else "a positive number"
        raise ConfigurationError(f"{directory / 'config.json'}: {key} is {value!r}; expected {noun}.")
    return kind(value)


def _rope_theta(directory: Path, config: dict[str, Any]) -> float:
    """From the top level, or from ``rope_parameters``, where newer versions of transformers put it."""
    theta: dict[str, Any] = {"rope_theta": config.get("rope_theta", DEFAULT_ROPE_THETA)}
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.get(key)
        if rope is None:
            continue
        if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) != "default":
            raise ConfigurationError(
                f"{directory / 'config.json'}: {key} is {rope!r}; a GRIFFIN drafter has plain rotary positions "
                "(type 'default')."
            )
        theta["rope_theta"] = rope.get("rope_theta", theta["rope_theta"])
    return _positive(directory, theta, "rope_theta", float)

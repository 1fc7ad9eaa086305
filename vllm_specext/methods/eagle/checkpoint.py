"""Checkpoints of EAGLE drafters as SafeAILab, SpecForge and speculators write them.

vLLM's loader leaves a parameter that the file lacks as it found the memory, and drops a bias that it has no parameter
for; such a drafter is served, and drafts nothing that is accepted. So all names and shapes are compared with the
parameters of vLLM's class before a weight is read. Then values are looked at: NaN and infinities, and ``d2t``, which
indexes the target's vocabulary in every step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import (
    DRAFT_VOCABULARY,
    Header,
    Shapes,
    check_files,
    check_floating,
    check_names,
    check_shapes,
    check_sizes,
    finite,
    load_tensor,
    read_object,
    tensor_headers,
)
from vllm_specext.methods.draft_vocabulary import tokens_of

INDEX = "model.safetensors.index.json"
FILES = ("config.json", "model*.safetensors", INDEX, "pytorch_model*.bin")
"""The files of a checkpoint on the hub."""

_NO_WEIGHTS = ("training_args.bin", "optimizer.bin")
_FIRST_LAYER = ("layers.0.", "midlayer.")
"""The names of the first layer; vLLM takes the second for the first."""


@dataclass(frozen=True)
class DrafterShape:
    """The parameters that vLLM's class of a drafter has."""

    is_eagle3: bool
    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    target_hidden_size: int
    states: int
    """Hidden states of the target that ``fc`` reads side by side; for EAGLE-1 one, beside an embedding."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    input_norm: bool = False
    fc_norm: bool = False

    def required(self) -> Shapes:
        d, h = self.hidden_size, self.target_hidden_size
        shapes: Shapes = {"fc.weight": (d, self.states * h if self.is_eagle3 else h + d)}
        for layer in range(self.layers):
            shapes |= dict(self._layer(layer))
        if self.is_eagle3:
            shapes["norm.weight"] = (d,)
        if self.input_norm:
            shapes["input_norm.weight"] = (self.states * h,)
        if self.fc_norm:
            shapes |= {f"fc_norm.{state}.weight": (h,) for state in range(self.states)}
        if d != h:
            shapes |= self._embedding()
        if d != h or self.has_own_vocabulary:
            shapes |= self._head()
        if self.has_own_vocabulary:
            shapes["d2t"] = (self.draft_vocab_size,)
        return shapes

    def optional(self) -> Shapes:
        """Without them the drafter takes the target's, or nothing reads them."""
        shapes = self._embedding()
        if self.is_eagle3:
            shapes |= self._head() | {"t2d": (self.vocab_size,)}
            shapes |= {f"layers.{layer}.hidden_norm.weight": (self.hidden_size,) for layer in range(1, self.layers)}
        return shapes

    @property
    def has_own_vocabulary(self) -> bool:
        return self.draft_vocab_size != self.vocab_size

    def _embedding(self) -> Shapes:
        return {"embed_tokens.weight": (self.vocab_size, self.hidden_size)}

    def _head(self) -> Shapes:
        return {"lm_head.weight": (self.draft_vocab_size, self.hidden_size)}

    def _layer(self, index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        d, m, is_first = self.hidden_size, self.mlp_size, index == 0
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        reads = 2 * d if self.is_eagle3 and is_first else d
        sizes = {"self_attn.q_proj": (q, reads), "self_attn.k_proj": (kv, reads), "self_attn.v_proj": (kv, reads)}
        sizes |= {"self_attn.o_proj": (d, q)}
        sizes |= {"mlp.gate_proj": (m, d), "mlp.up_proj": (m, d), "mlp.down_proj": (d, m)}
        with_bias = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] if self.qkv_bias else []
        with_bias += ["self_attn.o_proj"] if self.o_bias else []
        with_bias += [name for name in sizes if name.startswith("mlp.")] if self.mlp_bias else []
        norms = {"post_attention_layernorm": d}
        if self.is_eagle3 or not is_first:
            norms["input_layernorm"] = d
        if self.is_eagle3 and is_first:
            norms["hidden_norm"] = d
        if self.qk_norm:
            norms |= {"self_attn.q_norm": self.head_dim, "self_attn.k_norm": self.head_dim}
        prefix = f"layers.{index}"
        yield from ((f"{prefix}.{name}.weight", shape) for name, shape in sizes.items())
        yield from ((f"{prefix}.{name}.bias", sizes[name][:1]) for name in with_bias)
        yield from ((f"{prefix}.{name}.weight", (size,)) for name, size in norms.items())


def check_checkpoint(directory: Path, shape: DrafterShape) -> None:
    """Compare all names, types and shapes, and look at the values, one tensor after another.

    Raises ``ConfigurationError``, which names the file and the tensor.
    """
    files = weight_files(directory)
    place = files[0] if len(files) == 1 else directory
    found: dict[str, Header] = {}
    holder: dict[str, Path] = {}
    for file in files:
        headers = tensor_headers(file)
        if again := sorted(found.keys() & headers.keys()):
            raise ConfigurationError(f"{directory}: tensor {again[0]} is in {holder[again[0]].name} and {file.name}.")
        found |= headers
        holder |= dict.fromkeys(headers, file)
    ours, theirs = _FIRST_LAYER
    if any(name.startswith(theirs) for name in found):
        required, optional = (
            {name.replace(ours, theirs): size for name, size in shapes.items()}
            for shapes in (shape.required(), shape.optional())
        )
    else:
        required, optional = shape.required(), shape.optional()
    for name in sorted(found.keys() - required.keys() - optional.keys()):
        _refuse_known(place, name)
    wanted = required | {name: size for name, size in optional.items() if name in found}
    check_names(place, "loadable EAGLE-3" if shape.is_eagle3 else "loadable EAGLE", found, wanted)
    sizes = {name: header.shape for name, header in found.items()}
    check_sizes(place, sizes)
    check_shapes(place, sizes, wanted)
    for name, dtype in DRAFT_VOCABULARY.items():
        if name in found and found[name].dtype != dtype:
            raise ConfigurationError(
                f"{holder[name]}: tensor {name} has the type {found[name].dtype}; expected {dtype}."
            )
    check_floating(place, {name: header for name, header in found.items() if name not in DRAFT_VOCABULARY})
    if "d2t" in found:
        tokens_of(holder["d2t"], shape.vocab_size)
    # Here, because vLLM's classes keep weights in other forms once they are loaded.
    for _ in finite(place, ((name, load_tensor(file, name)) for name, file in holder.items())):
        pass


def weight_files(directory: Path) -> list[Path]:
    """Those that vLLM's loader reads: all safetensors files, or those that the index names, or else ``.bin``."""
    check_files(directory, ("*.json", "*.safetensors", "*.bin"))
    if mistral := sorted(directory.glob("consolidated*.safetensors")):
        raise ConfigurationError(f"{mistral[0]} is in Mistral's own format, which is not supported for drafters.")
    files = sorted(directory.glob("*.safetensors"))
    index = directory / INDEX
    if files and index.exists():
        named = read_object(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
            raise ConfigurationError(f"{index}: weight_map does not map the names of tensors to those of files.")
        here = {file.name for file in files}
        if gone := sorted(set(named.values()) - here):
            raise ConfigurationError(f"{directory} has no {gone[0]}, which {INDEX} names.")
        files = [file for file in files if file.name in named.values()]
    files = files or [file for file in sorted(directory.glob("*.bin")) if file.name not in _NO_WEIGHTS]
    if not files:
        raise ConfigurationError(f"{directory} has neither model.safetensors nor pytorch_model.bin, nor parts of them.")
    return files


def _refuse_known(place: Path, name: str) -> None:
    """Say what a tensor means that vLLM's class, as it was configured, has no parameter for."""
    if name == "mask_hidden":
        reason = "belongs to a drafter that drafts all positions at once (P-EAGLE), which is not supported"
    elif name == "input_norm.weight":
        reason = "is read only where config.json has norm_before_fc = true"
    elif name.startswith("fc_norm."):
        reason = "is read only where config.json has fc_norm = true, for each of the target's states that fc reads"
    elif name == "d2t":
        reason = "is read only where config.json has a draft_vocab_size below vocab_size"
    elif name.endswith(".bias"):
        reason = "is a bias that vLLM's class does not have with this config.json, and would leave out"
    else:
        return
    raise ConfigurationError(f"{place}: tensor {name} {reason}.")

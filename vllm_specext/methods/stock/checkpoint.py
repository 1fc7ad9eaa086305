"""Checkpoints of drafters that vLLM has classes for.

vLLM's loader leaves a parameter that the file lacks as it found the memory, and drops a bias that it has no parameter
for; such a drafter is served, and drafts nothing that is accepted. So all names and shapes are compared with the
parameters of vLLM's class before a weight is read. Then values are looked at: NaN and infinities, and ``d2t``, which
indexes the target's vocabulary in every step.
"""

from math import prod
from pathlib import Path
from typing import Protocol

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

MASK_HIDDEN = "mask_hidden"
"""What a P-EAGLE drafter reads in the place of the target's states that are not known yet. vLLM's class flattens it, so
that it may have further dimensions of 1."""

TOKEN_ORDERING = "masked_embedding.token_ordering"
"""Tokens of the clusters of a Gemma 4 assistant, of any type of whole numbers."""

_NO_WEIGHTS = ("training_args.bin", "optimizer.bin")
_FIRST_LAYER = ("layers.0.", "midlayer.")
"""The names of the first layer; vLLM takes the second for the first."""


class Parameters(Protocol):
    """The parameters that vLLM's class of a drafter has."""

    @property
    def kind(self) -> str:
        """What checkpoints with them are called."""

    @property
    def vocab_size(self) -> int:
        """The target's."""

    def required(self) -> Shapes: ...

    def optional(self) -> Shapes:
        """Without them the drafter takes the target's, or nothing reads them."""

    def meaning(self, name: str) -> str | None:
        """What is wrong with a tensor of another ``name``, where more can be said than that nothing reads it."""


def meaning_of_any(name: str) -> str | None:
    """`Parameters.meaning` of tensors that checkpoints of every kind may have."""
    if name == "d2t":
        return "is read only where config.json has a draft_vocab_size below vocab_size"
    if name.endswith(".bias"):
        return "is a bias that vLLM's class does not have with this config.json, and would leave out"
    return None


def check_checkpoint(directory: Path, parameters: Parameters) -> None:
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
            for shapes in (parameters.required(), parameters.optional())
        )
    else:
        required, optional = parameters.required(), parameters.optional()
    for name in sorted(found.keys() - required.keys() - optional.keys()):
        if (reason := parameters.meaning(name)) is not None:
            raise ConfigurationError(f"{place}: tensor {name} {reason}.")
    wanted = required | {name: size for name, size in optional.items() if name in found}
    check_names(place, f"loadable {parameters.kind}", found, wanted)
    sizes = {name: header.shape for name, header in found.items()}
    if MASK_HIDDEN in sizes:
        sizes[MASK_HIDDEN] = (1, prod(sizes[MASK_HIDDEN]))
    check_sizes(place, sizes)
    check_shapes(place, sizes, wanted)
    for name, dtype in DRAFT_VOCABULARY.items():
        if name in found and found[name].dtype != dtype:
            raise ConfigurationError(
                f"{holder[name]}: tensor {name} has the type {found[name].dtype}; expected {dtype}."
            )
    no_weights = {TOKEN_ORDERING, *DRAFT_VOCABULARY}
    check_floating(place, {name: header for name, header in found.items() if name not in no_weights})
    if "d2t" in found:
        tokens_of(holder["d2t"], parameters.vocab_size)
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

"""The ends of the target, which a drafter shares with it or begins with: embedding, last norm and head, read from its
files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import positive
from vllm_specext.training.logits import LastNorm, logits_of
from vllm_specext.training.pipeline.target import TargetModel, target_files

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
HEADS = ("lm_head.weight", "output.weight")
NORMS = ("model.norm.weight", "ln_f.weight")
"""How the names of these tensors end, in the families that vLLM loads."""
OF_A_LAYER = re.compile(r"(^|\.)(layers\.\d+|mtp\w*)\.")
"""In names of tensors of one layer, or of a multi-token prediction module, which may have ends of its own."""
ONE_MORE_THAN_WEIGHTS = (
    *("gemma", "gemma2", "gemma3", "gemma3_text", "nemotron", "step3p5"),
    *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
)
"""Types of models whose norms multiply by one more than their weights."""
NORM_WITH_HEAD = {"MiMoForCausalLM", "Step3p5ForCausalLM"}
"""Architectures whose class in vLLM gives the last hidden state before the last norm, which is applied with the head
there. Their modules read it so."""
EMBEDDINGS_TIMES_ROOT = (
    *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
)
"""Types of models that multiply embeddings by the root of the hidden size."""


@dataclass(frozen=True)
class PlainNumbers:
    """Of a drafter's layer, as the target's layers have them."""

    rms_norm_eps: float
    rope_theta: float


def plain_numbers(target: TargetModel) -> PlainNumbers:
    """The target's, without any scaling of its positions; those of most families, where it names none."""
    rope = target.config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)  # beside others, for layers with a window
    theta = rope.get("rope_theta") or target.config.get("rope_theta") or 10000.0
    numbers = {"rms_norm_eps": target.config.get("rms_norm_eps") or 1e-6, "rope_theta": theta}
    return PlainNumbers(**{key: positive(target.folder, numbers, key, float) for key in numbers})


class TargetEnds:
    """The ends of the target, in float32 and not trained: embedding and head, both ``[V, d]``, how logits are made, and
    what the last norm multiplies by ``[d]``, ``None`` where no tensor has the usual name.

    It has as much of a model of transformers as beginning a drafter takes.
    """

    def __init__(self, target: TargetModel) -> None:
        numbers = plain_numbers(target)
        self.config = SimpleNamespace(
            rms_norm_eps=numbers.rms_norm_eps,
            rope_parameters={"rope_theta": numbers.rope_theta},
            max_position_embeddings=target.max_length,
        )
        tensors = dict(_ends(target.folder))
        self._embedding = nn.Embedding.from_pretrained(_one(target, tensors, EMBEDDINGS, "embedding").float())
        tied = target.config.get("tie_word_embeddings") is True or not _named(tensors, HEADS)
        self.head = self._embedding.weight.detach() if tied else _one(target, tensors, HEADS, "output layer").float()

        self.logits = logits_of(target.config)
        norms = [tensors[name] for name in _named(tensors, NORMS) if tensors[name].shape == (target.hidden_size,)]
        scaled = target.config.get("model_type") in EMBEDDINGS_TIMES_ROOT
        self.embedding_scale = target.hidden_size**0.5 if scaled else 1.0
        """What the target multiplies embeddings by."""
        more = float(target.config.get("model_type") in ONE_MORE_THAN_WEIGHTS)
        self.norm = norms[0].float() + more if len(norms) == 1 else None
        if set(target.config.get("architectures") or []) & NORM_WITH_HEAD:
            if self.norm is None:
                raise ConfigurationError(
                    f"{target.folder} has {len(norms)} tensors that may be the target's last norm; expected one whose "
                    f"name ends with {' or '.join(NORMS)}."
                )
            self.logits = replace(self.logits, norm=LastNorm(self.norm, numbers.rms_norm_eps))

    def get_input_embeddings(self) -> nn.Embedding:
        return self._embedding


def _ends(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors in the target's files that may be its embedding, its last norm or its head."""
    for path in target_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    if name.endswith(EMBEDDINGS + HEADS + NORMS) and not OF_A_LAYER.search(name):
                        yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ConfigurationError(f"{path} is truncated or damaged: its tensors cannot be read.") from error


def _named(tensors: dict[str, Tensor], endings: tuple[str, ...]) -> list[str]:
    return [name for name in tensors if name.endswith(endings)]


def _one(target: TargetModel, tensors: dict[str, Tensor], endings: tuple[str, ...], what: str) -> Tensor:
    names = _named(tensors, endings)
    if len(names) != 1:
        raise ConfigurationError(
            f"{target.folder} has {len(names)} tensors that may be the target's {what}; expected one whose name ends "
            f"with {' or '.join(endings)}, in a file *.safetensors."
        )
    tensor = tensors[names[0]]
    if tensor.dim() != 2 or not tensor.is_floating_point() or tensor.shape[1] != target.hidden_size:
        raise ConfigurationError(
            f"{target.folder}: tensor {names[0]} has shape {list(tensor.shape)} and type {tensor.dtype}; an "
            f"{what} that is not quantised has [vocabulary, {target.hidden_size}] floating-point numbers."
        )
    if not bool(torch.isfinite(tensor.float().sum())):
        raise ConfigurationError(f"{target.folder}: tensor {names[0]} holds numbers that are not finite.")
    return tensor

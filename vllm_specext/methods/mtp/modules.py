"""Multi-token prediction modules in checkpoints: of which targets, and by which names."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vllm_specext.methods.checkpoints import MAX_CONFIG_BYTES, read_object, tensor_headers
from vllm_specext.methods.stock.checkpoint import INDEX


@dataclass(frozen=True)
class Modules:
    """How targets of an architecture have modules."""

    key: str
    """Of their configuration: the number of modules."""
    absent: int
    """The number where the configuration does not say it."""
    prefix: str
    """With which the names of the modules' tensors begin; of ``{layers}`` layers before it."""


_QWEN3_5 = Modules("mtp_num_hidden_layers", 1, "mtp.")
_EXAONE = Modules("num_nextn_predict_layers", 0, "mtp.")
_LAST_LAYER = Modules("num_nextn_predict_layers", 0, "model.layers.{layers}.")
TARGETS = {
    "DeepseekV3ForCausalLM": _LAST_LAYER,
    "Ernie4_5_MoeForCausalLM": Modules("num_nextn_predict_layers", 0, "model.mtp_block."),
    "ExaoneMoEForCausalLM": _EXAONE,
    "ExaoneMoeForCausalLM": _EXAONE,
    "Glm4MoeForCausalLM": _LAST_LAYER,
    "Glm4MoeLiteForCausalLM": _LAST_LAYER,
    "HYV3ForCausalLM": _LAST_LAYER,
    "MiMoForCausalLM": Modules("num_nextn_predict_layers", 0, "model.mtp_layers."),
    "NemotronHForCausalLM": Modules("num_nextn_predict_layers", 0, "mtp."),
    "Qwen3NextForCausalLM": Modules("num_nextn_predict_layers", 1, "mtp."),
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5MoeForCausalLM": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": _QWEN3_5,
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_5,
}
"""Architectures of targets. vLLM has classes of many more, and drafts chains with them."""


def tensor_names(folder: Path) -> Iterable[str]:
    """Of the tensors of a checkpoint. None where they are not told in little."""
    index = folder / INDEX
    if not index.is_file():
        return [name for file in sorted(folder.glob("*.safetensors")) for name in tensor_headers(file)]
    if index.stat().st_size > MAX_CONFIG_BYTES:
        return []
    named = read_object(index).get("weight_map")
    return named if isinstance(named, dict) else []

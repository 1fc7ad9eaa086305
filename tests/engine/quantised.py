"""Quantised models, made of bundled ones, and what is put into an engine's process to look at them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.workload import TARGET, copy_tokenizer

GROUP = 32
"""Weights in four bits share a scale."""


def _eight_bits(kind: str, dtype: torch.dtype, largest: float) -> Any:
    weights = {"num_bits": 8, "type": kind, "strategy": "channel", "symmetric": True, "dynamic": False}
    inputs = weights | {"strategy": "token", "dynamic": True}

    def of(weight: Tensor) -> dict[str, Tensor]:
        scale = weight.abs().amax(1, keepdim=True) / largest
        whole = weight / scale
        return {"weight": (whole if dtype.is_floating_point else whole.round()).to(dtype), "weight_scale": scale}

    return f"{kind}-quantized", {"weights": weights, "input_activations": inputs}, of


def _four_bits(weight: Tensor) -> dict[str, Tensor]:
    rows, columns = weight.shape
    groups = weight.view(rows, columns // GROUP, GROUP)
    scale = groups.abs().amax(2, keepdim=True) / 7.5
    nibbles = (groups / scale).round().clamp(-8, 7).int().view(rows, columns) + 8
    packed = torch.zeros(rows, columns // 8, dtype=torch.int32)
    for place in range(8):
        packed |= nibbles[:, place::8] << 4 * place
    return {
        "weight_packed": packed,
        "weight_scale": scale.view(rows, -1).half(),
        "weight_shape": torch.tensor([rows, columns]),
    }


_SHARED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True, "dynamic": False}
SCHEMES: dict[str, Any] = {
    "int8": _eight_bits("int", torch.int8, 127),
    "fp8": _eight_bits("float", torch.float8_e4m3fn, 448),
    "int4": ("pack-quantized", {"weights": _SHARED, "input_activations": None}, _four_bits),
}
"""Formats of compressed-tensors: weights and activations of 8 bits, or weights alone of 4."""


def quantised(folder: Path, scheme: str, source: Path = TARGET, head: bool = False) -> Path:
    """``source`` with the products of all its layers in one of ``SCHEMES``, and of an output layer of its own."""
    copy_tokenizer(folder, source)
    name, group, of = SCHEMES[scheme]
    tensors: dict[str, Tensor] = {}
    found = load_file(source / "model.safetensors")
    if head:
        found["lm_head.weight"] = found["model.embed_tokens.weight"]
    for key, tensor in found.items():
        stem, weight = key.rpartition(".")[::2]
        product = (stem.endswith("_proj") and "input_proj" not in stem) or (head and stem == "lm_head")
        if product and weight == "weight":
            tensors |= {f"{stem}.{part}": made for part, made in of(tensor.float()).items()}
        else:
            tensors[key] = tensor
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": name,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear", *["re:.*lm_head"] * head]} | group},
        "ignore": [] if head else ["lm_head"],
    }
    config["tie_word_embeddings"] &= not head
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def what_a_checkpoint_quantises_is_quantised() -> None:
    """Every product of a model whose checkpoint is quantised has to be, and none of another's."""
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    stock = BaseModelLoader.load_model

    def load_model(self: Any, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        model = stock(self, vllm_config, model_config, prefix)
        wanted = model_config.quantization is not None
        methods = [module.quant_method for module in model.modules() if isinstance(module, LinearBase)]
        assert methods
        assert all(isinstance(method, UnquantizedLinearMethod) != wanted for method in methods)
        return model

    BaseModelLoader.load_model = load_model  # type: ignore[method-assign]


def round_attention_otherwise() -> None:
    """What vLLM's own attention gives differs by a random last bit or so, as if it had added in another order."""
    import torch
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    stock = CPUAttentionBackendImpl.forward
    noise = torch.Generator().manual_seed(0)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        found = stock(self, *args, **kwargs)
        return found.mul_(1 + 1e-7 * torch.randn(found.shape, generator=noise))

    CPUAttentionBackendImpl.forward = forward  # type: ignore[method-assign]

"""Drafters in float8 beside a target in float32, so that tokens can be compared: put into an engine's process."""

from typing import Any


def float8_beside_float32() -> None:
    """Nobody refuses it. In the end, every linear layer of a drafter that asks for it has to be in float8, and none of
    the target's; and the drafter's output layer, if it asks for that."""
    import torch
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.quantization.online.base import OnlineQuantizationConfig
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

    import vllm_specext.engine.float8 as ours
    from vllm_specext.engine.drafting.float8_head import Float8Head

    allowed = classmethod(lambda cls: [torch.float32])
    OnlineQuantizationConfig.get_supported_act_dtypes = allowed  # type: ignore[method-assign, assignment]
    ours.check = lambda options, model: None
    stock = BaseModelLoader.load_model

    def load_model(self: Any, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        model = stock(self, vllm_config, model_config, prefix)
        weights = [module.weight for module in model.modules() if isinstance(module, LinearBase)]
        wanted = model_config.quantization is not None
        assert weights
        assert all((weight.dtype == torch.float8_e4m3fn) == wanted for weight in weights)
        return model

    BaseModelLoader.load_model = load_model  # type: ignore[method-assign]
    stock_drafter = DraftModelSpeculator.load_model

    def load_drafter(self: Any, target_model: Any) -> None:
        stock_drafter(self, target_model)
        found = any(isinstance(module, Float8Head) for module in self.model.modules())
        assert found == ours.has_head_in_float8(self.speculative_config.options)

    DraftModelSpeculator.load_model = load_drafter  # type: ignore[method-assign]


def float8_every_draft() -> None:
    from tests.engine.walk_faults import accept_every_draft

    float8_beside_float32()
    accept_every_draft()


def float8_best_nodes() -> None:
    from tests.engine.walk_faults import accept_the_best_node_of_every_tree

    float8_beside_float32()
    accept_the_best_node_of_every_tree()

"""Drafters in float8 beside a target in float32, so that tokens can be compared: put into an engine's process."""

from typing import Any


def float8_beside_float32() -> None:
    """Nobody refuses it, and every matrix of the drafter, but for the embedding, has to be in float8 in the end."""
    import torch
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.quantization.online.base import OnlineQuantizationConfig

    import vllm_specext.engine.float8 as ours
    from vllm_specext.engine.drafting.hidden_states import HiddenStateDrafter

    allowed = classmethod(lambda cls: [torch.float32])
    OnlineQuantizationConfig.get_supported_act_dtypes = allowed  # type: ignore[method-assign, assignment]
    ours.check = lambda options, dtype: None
    stock = HiddenStateDrafter.load

    def load(self: Any, target_model: Any, vllm_config: Any) -> Any:
        drafter = stock(self, target_model, vllm_config)
        weights = [module.weight for module in drafter.modules() if isinstance(module, LinearBase)]
        wanted = vllm_config.speculative_config.quantization is not None
        assert weights
        assert all((weight.dtype == torch.float8_e4m3fn) == wanted for weight in weights)
        return drafter

    HiddenStateDrafter.load = load  # type: ignore[method-assign]


def float8_every_draft() -> None:
    from tests.engine.walk_faults import accept_every_draft

    float8_beside_float32()
    accept_every_draft()


def float8_best_nodes() -> None:
    from tests.engine.walk_faults import accept_the_best_node_of_every_tree

    float8_beside_float32()
    accept_the_best_node_of_every_tree()

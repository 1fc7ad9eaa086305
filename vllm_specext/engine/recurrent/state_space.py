"""vLLM's layers of Mamba-2: Granite 4, Nemotron-H and Falcon-H1 (`kernels.state_space`)."""

from typing import Any

from torch import Tensor
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionBackend, Mamba2AttentionMetadataBuilder

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.recurrent.kind import RecurrentKind, Verifier, keep_one_state, run
from vllm_specext.engine.recurrent.metadata import OneStateBuilder, OneStateMetadata
from vllm_specext.kernels.state_space import STATE_SPACE_RULE, StateSpaceLayer


def layer_of(module: Any) -> StateSpaceLayer:
    conv_states, states = module.kv_cache
    if not is_conv_state_dim_first():
        conv_states = conv_states.transpose(1, 2)
    # Where requests may have adapters, the layer is in another.
    conv = getattr(module.conv1d, "base_layer", module.conv1d)
    return StateSpaceLayer(
        conv_weight=module.conv_weights,
        conv_bias=conv.bias,
        decay=module.A,
        step_bias=module.dt_bias,
        conv_states=conv_states,
        states=states,
        skip=module.D,
        groups=module.n_groups // module.tp_size,
        by_chance=module.mamba_config.enable_stochastic_rounding,
    )


class StateSpaceBackend(Mamba2AttentionBackend):
    """vLLM's, with this builder."""

    @staticmethod
    def get_builder_cls() -> type["StateSpaceBuilder"]:
        return StateSpaceBuilder


class StateSpaceBuilder(OneStateBuilder, Mamba2AttentionMetadataBuilder):
    state_indices_tensor_d: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_spec_tokens, self.use_spec_decode = 0, False
        # Its columns say how many states a request has.
        self.state_indices_tensor_d = self.state_indices_tensor_d[:, :1].contiguous()
        # As without drafts: what groups of layers have in common is computed for the first alone.
        self.supports_update_block_table = True

    def update_block_table(self, metadata: Any, blk_table: Tensor, slot_mapping: Tensor) -> Any:
        stock = super().update_block_table
        if not isinstance(metadata, OneStateMetadata):
            return stock(metadata, blk_table, slot_mapping)
        return self.with_table(metadata, blk_table, lambda others, table: stock(others, table, slot_mapping))


@replaces(
    "vllm.model_executor.layers.mamba.mamba_mixer2.MambaMixer2.conv_ssm_forward",
    name="state space rule of drafts",
    why="vLLM's kernels verify chains alone",
    how="set on the target's instances: rows of drafts run our kernel, all others vLLM's method",
    upstream="none known",
    until="vLLM verifies trees whose shape differs by request",
    kind="set",
)
def wrap(module: Any, verifier: Verifier) -> None:
    stock = module.conv_ssm_forward

    def conv_ssm_forward(projected_states: Tensor, output: Tensor) -> None:
        def verify(step: Any) -> None:
            # The gate lies before them.
            own = projected_states[:, module.tped_intermediate_size :]
            mixed, steps = own.split([module.tped_conv_size, module.tped_dt_size], dim=-1)
            if step.others is None:
                # The model allocates rows of no request too, and layers after this one may scale all rows alike.
                output.zero_()
            verifier.verify(step, mixed, (steps,), output.unflatten(-1, (module.tped_dt_size, module.head_dim)))

        run(module.prefix, verify, lambda rows: stock(projected_states=projected_states[rows], output=output[rows]))

    keep_one_state(module, StateSpaceBackend)
    module.conv_ssm_forward = conv_ssm_forward


KIND = RecurrentKind(
    module=MambaMixer2,
    rule=STATE_SPACE_RULE,
    gates=1,
    heads=lambda module: int(module.num_heads),
    layer_of=layer_of,
    wrap=wrap,
)

"""vLLM's per-model state with our verification in place of its rejection sampler, and with draft trees where the
configuration asks for them."""

from functools import cache
from typing import Any

from torch import Tensor
from vllm.config import get_layers_from_vllm_config
from vllm.config.compilation import CUDAGraphMode
from vllm.model_executor.layers.attention import Attention
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_states.interface import ModelState
from vllm.v1.worker.gpu.sample.sampler import Sampler

from vllm_specext.cpu_runner.recording import records_passes
from vllm_specext.engine.graph_sizes import capture_no_mixed_batches
from vllm_specext.engine.verification.attention import wrap_target_layers
from vllm_specext.engine.verification.kept_state import with_kept_memory
from vllm_specext.engine.verification.known_layers import with_known_layers
from vllm_specext.engine.verification.latent_chains import LatentRows, latent_layers, with_latent_chains
from vllm_specext.engine.verification.latent_layers import wrap_latent_layers
from vllm_specext.engine.verification.latent_steps import divide_by_drafts, verifying
from vllm_specext.engine.verification.noted_requests import noting_requests
from vllm_specext.engine.verification.one_state import with_one_state
from vllm_specext.engine.verification.recurrent_trees import RecurrentTrees, verify_as_decoding, with_recurrent_chains
from vllm_specext.engine.verification.sampler import TargetOnlyVerifier, TreeVerifier
from vllm_specext.engine.verification.scoring import DrawnDraftVerifier, ScoringVerifier
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.engine.verification.tree_steps import TreeSteps


def with_our_verification(base: Any, config: Any) -> type[ModelState]:
    """Subclass of ``base``, the state vLLM chose for the target; ``config`` is the ``SpecExtConfig``. Drafts that are
    drawn with probabilities of their own are verified by vLLM's rule."""
    base = with_one_state(noting_requests(with_known_layers(base)))
    if config.tree is not None:
        return with_kept_memory(_for_trees(base))
    verifier = DrawnDraftVerifier if config.options.samples_drafts else TargetOnlyVerifier
    return with_kept_memory(_for_chains(with_latent_chains(with_recurrent_chains(base)), verifier))


@cache
def _for_chains(base: Any, verifier: type[ScoringVerifier]) -> Any:
    class ChainModelState(base):
        def custom_sampler(self, sampler: Sampler) -> tuple[Any, Any]:
            return sampler, verifier(sampler, self.vllm_config.speculative_config, self.device)

    return ChainModelState


@cache
def _for_trees(base: Any) -> Any:
    class TreeModelState(base):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            config = self.vllm_config.speculative_config
            recorded = records_passes(self.vllm_config)
            recurrent = RecurrentTrees.of(self.vllm_config, self.max_num_reqs, self.device)
            self._has_states = recurrent is not None
            latent = latent_layers(self.vllm_config)
            own = self.max_num_reqs, self.max_model_len, self.device
            self._latent = LatentRows(config.tree.nodes, *own) if latent else None
            # vLLM's own graphs of chains would write a state for each row, and have prompts' attention over latent
            # caches where a backend takes one row of a request alone.
            chains = config.options.short_are_chains and not self._has_states and not latent
            chain_rows = 1 + config.tree.depth if chains else 0
            trees = TreeStates(config.tree, *own, recorded, config.levels, chain_rows)
            self.steps = TreeSteps(trees, recurrent, None if self._latent is None else self._latent.causal)
            self.forget_caches = self.steps.forget_caches
            found = get_layers_from_vllm_config(self.vllm_config, Attention)
            layers = {name: layer for name, layer in found.items() if not layer.is_draft_layer}
            wrap_target_layers(layers.values(), config.levels)
            wrap_latent_layers(latent.values(), of_target=True)
            self._layers = layers | latent
            if latent:
                divide_by_drafts()
            capture_no_mixed_batches(self.vllm_config.compilation_config)

        def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
            super().initialize_kv_cache(kv_cache_config, block_tables)
            groups = (group.layer_names for group in kv_cache_config.kv_cache_groups)
            self.steps.use_caches(
                [{name: self._layers[name] for name in names if name in self._layers} for names in groups]
            )

        def custom_sampler(self, sampler: Sampler) -> tuple[Any, Any]:
            self._request_states = sampler.req_states
            return sampler, TreeVerifier(sampler, self.vllm_config.speculative_config, self.device, self.steps)

        def prepare_inputs(self, input_batch: InputBatch, req_states: Any) -> dict[str, Tensor | None]:
            inputs: dict[str, Tensor | None] = super().prepare_inputs(input_batch, req_states)
            if (positions := inputs.get("positions")) is not None:
                self.steps.place_on_axes(input_batch, positions)
            return inputs

        def prepare_attn(
            self,
            input_batch: InputBatch,
            cudagraph_mode: CUDAGraphMode,
            block_tables: tuple[Tensor, ...],
            slot_mappings: Tensor,
            *args: Any,
            for_capture: bool = False,
            **kwargs: Any,
        ) -> dict[str, Any]:
            trees = self.steps.trees
            if self._has_states:
                verify_as_decoding(input_batch)
            if for_capture:
                layout = trees.for_capture(input_batch, self.max_model_len)
            else:
                layout = trees.lay_out(input_batch, self._request_states.prefill_len.gpu)
                if layout is not None and cudagraph_mode == CUDAGraphMode.FULL:
                    layout.check_replay(input_batch, trees.chain_rows)
            decoding = layout
            if self._latent is not None and not for_capture and cudagraph_mode != CUDAGraphMode.FULL:
                decoding = self._latent.lay_out(input_batch, trees=layout)
            with verifying(decoding, input_batch, padded=cudagraph_mode == CUDAGraphMode.FULL):
                metadata = super().prepare_attn(
                    input_batch, cudagraph_mode, block_tables, slot_mappings, *args, for_capture=for_capture, **kwargs
                )
            self.steps.begin(input_batch, layout, metadata, slot_mappings, decoding)
            return metadata

    return TreeModelState

"""vLLM's per-model state with our verification in place of its rejection sampler, and with draft trees where the
configuration asks for them."""

from functools import cache
from typing import Any

import numpy as np
from torch import Tensor
from vllm.config import get_layers_from_vllm_config
from vllm.config.compilation import CUDAGraphMode
from vllm.model_executor.layers.attention import Attention
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.model_states.interface import ModelState
from vllm.v1.worker.gpu.sample.sampler import Sampler

from vllm_specext.engine.attention import wrap_target_layers
from vllm_specext.engine.graph_sizes import capture_no_mixed_batches
from vllm_specext.engine.requests import Drafting, drafting_for, has_custom_processors
from vllm_specext.engine.scoring import DrawnDraftVerifier, ScoringVerifier
from vllm_specext.engine.trees import TreeStates
from vllm_specext.engine.verification import TargetOnlyVerifier, TreeVerifier


def with_our_verification(base: Any, config: Any) -> type[ModelState]:
    """Subclass of ``base``, the state vLLM chose for the target; ``config`` is the ``SpecExtConfig``. Drafts that are
    drawn with probabilities of their own are verified by vLLM's rule."""
    if config.tree is not None:
        return _for_trees(base)
    return _for_chains(_noting_kinds(base), DrawnDraftVerifier if config.options.samples_drafts else TargetOnlyVerifier)


@cache
def _noting_kinds(base: Any) -> Any:
    class NotingModelState(base):
        kinds: np.ndarray
        """What each request slot may be drafted, for drafters that can spare themselves the work."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.kinds = np.full(self.max_num_reqs, Drafting.TREE)
            self._custom_processors = has_custom_processors(self.model_config)

        def add_request(self, req_index: int, new_req_data: Any) -> None:
            super().add_request(req_index, new_req_data)
            reads = self.vllm_config.speculative_config.declared.reads
            self.kinds[req_index] = drafting_for(new_req_data, reads, self._custom_processors)

    return NotingModelState


@cache
def _for_chains(base: Any, verifier: type[ScoringVerifier]) -> type[ModelState]:
    class ChainModelState(base):
        def custom_sampler(self, sampler: Sampler) -> tuple[Any, Any]:
            return sampler, verifier(sampler, self.vllm_config.speculative_config, self.device)

    return ChainModelState


@cache
def _for_trees(base: Any) -> type[ModelState]:
    class TreeModelState(base):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            shape = self.vllm_config.speculative_config.tree
            self.trees = TreeStates(shape, self.max_num_reqs, self.max_model_len, self.device)
            layers = get_layers_from_vllm_config(self.vllm_config, Attention)
            self._layers = {name: layer for name, layer in layers.items() if not layer.is_draft_layer}
            wrap_target_layers(self._layers.values(), shape.levels)
            capture_no_mixed_batches(self.vllm_config.compilation_config)
            self._custom_processors = has_custom_processors(self.model_config)
            self._groups: list[list[str]] = []
            self._caches: list[list[Attention]] = []

        @property
        def target_layers_by_group(self) -> list[list[Attention]]:
            """The target's attention layers by cache group, when there are caches."""
            return self._caches

        def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
            super().initialize_kv_cache(kv_cache_config, block_tables)
            names = [group.layer_names for group in kv_cache_config.kv_cache_groups]
            self._groups[:] = [[name for name in group if name in self._layers] for group in names]
            self.trees.forget_caches()
            self._caches[:] = [[self._layers[name] for name in group] for group in self._groups]

        def custom_sampler(self, sampler: Sampler) -> tuple[Any, Any]:
            self._request_states = sampler.req_states
            return sampler, TreeVerifier(
                sampler, self.vllm_config.speculative_config, self.device, self.trees, self._caches
            )

        def add_request(self, req_index: int, new_req_data: Any) -> None:
            super().add_request(req_index, new_req_data)
            reads = self.vllm_config.speculative_config.declared.reads
            self.trees.kinds[req_index] = drafting_for(new_req_data, reads, self._custom_processors)

        def preprocess_state(self, input_batch: InputBatch, *args: Any) -> None:
            super().preprocess_state(input_batch, *args)
            self.trees.begin(input_batch, self._request_states.prefill_len.gpu)

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
            metadata = super().prepare_attn(
                input_batch, cudagraph_mode, block_tables, slot_mappings, *args, for_capture=for_capture, **kwargs
            )
            if for_capture:
                self.trees.capture(input_batch, self.max_model_len)
            elif cudagraph_mode == CUDAGraphMode.FULL:
                self.trees.check_replay(input_batch)
            self.trees.attach(input_batch, metadata, self._groups, slot_mappings)
            return metadata

    return TreeModelState

"""Which rows of a step decode in the target's layers with multi-head latent attention (MLA), and what they see.

vLLM reads requests of several rows as prompts where they differ in length and the backend wants them alike, and takes
their lengths from the host. Those are upper bounds while steps are scheduled ahead: slots that no token was written to
would be attended to. So here all requests decode that are past their prompts, whether they have a draft or not.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.config.compilation import CUDAGraphMode
from vllm.model_executor.layers.attention import MLAAttention
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.verification.latent_layers import reads_chains_as_prompts, wrap_latent_layers
from vllm_specext.engine.verification.latent_steps import divide_by_drafts, verifying
from vllm_specext.engine.verification.layout import TreeLayout
from vllm_specext.tree.topology import Topology


def latent_layers(vllm_config: VllmConfig) -> dict[str, Any]:
    """The target's layers with latent attention, by name."""
    layers = get_layers_from_vllm_config(vllm_config, MLAAttention)
    return {name: layer for name, layer in layers.items() if not layer.is_draft_layer}


class LatentRows:
    """Rows of up to ``requests`` requests, each with at most ``nodes`` drafted tokens."""

    def __init__(self, nodes: int, requests: int, max_model_len: int, device: torch.device) -> None:
        self.causal = Topology.chain(1, nodes, device).ancestors[0]
        """What the rows of a chain see, ``[nodes + 1, words]``."""
        self._visible = self.causal.expand(requests, -1, -1)
        self._prefix_lens = torch.zeros(requests, dtype=torch.int32, device=device)  # which a captured graph reads
        self._longest = max_model_len

    def lay_out(
        self, batch: InputBatch, for_capture: bool = False, trees: TreeLayout | None = None
    ) -> TreeLayout | None:
        """The rows of ``batch`` that decode, and those of whatever stands before them, as chains but for the first ones
        that are ``trees``. ``None`` where vLLM divides the step so itself."""
        requests = _in_capture(batch) if for_capture else _that_decode(batch)
        if trees is not None and requests <= trees.requests:
            return trees
        if requests == 0:
            return None
        starts = batch.query_start_loc[: requests + 1]
        query = int(batch.num_scheduled_tokens[:requests].max())
        prefix_lens, visible = self._prefix_lens[:requests], self._visible[:requests, :query]
        if not for_capture:
            prefix_lens.copy_(batch.seq_lens[:requests] - starts.diff())
        if trees is not None:
            visible = visible.clone()
            visible[: trees.requests, : trees.query] = trees.visible
            prefix_lens[: trees.requests] = trees.prefix_lens
        return TreeLayout(
            requests=requests,
            rows=int(batch.query_start_loc_np[requests]),
            query=query,
            starts=starts,
            prefix_lens=prefix_lens,
            visible=visible,
            longest=self._longest if for_capture else int(batch.seq_lens_cpu_upper_bound[:requests].max()),
            levels=query - 1,
            chains=trees is None,
        )


def _in_capture(batch: InputBatch) -> int:
    """All requests where they have several rows."""
    return batch.num_reqs if batch.num_tokens > batch.num_reqs else 0


def _that_decode(batch: InputBatch) -> int:
    """The number of requests up to the last one that is past its prompt, or has a draft. 0 where there is no draft, and
    no prompt stands before such a request, as one does that has as many rows as drafts may have."""
    past = ~batch.is_prefilling_np
    drafted = batch.num_draft_tokens_per_req
    if drafted is not None and drafted.any():
        past = past | (drafted > 0)
    elif not (past[1:] & ~past[:-1]).any():
        return 0
    return int(np.flatnonzero(past)[-1]) + 1


@cache
def with_latent_chains(base: Any) -> Any:
    """Subclass of ``base``, vLLM's per-model state, for targets whose layers may have latent attention."""

    class LatentChainState(base):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            # Other backends are left alone: those that need no help, and those that have not been looked at.
            found = latent_layers(self.vllm_config)
            layers = {name: layer for name, layer in found.items() if reads_chains_as_prompts(layer)}
            self._latent_names = [[name] for name in layers]
            self._latent: LatentRows | None = None
            if layers:
                wrap_latent_layers(layers.values(), of_target=True)
                divide_by_drafts()
                nodes = self.vllm_config.speculative_config.levels
                self._latent = LatentRows(nodes, self.max_num_reqs, self.max_model_len, self.device)

        def prepare_attn(
            self,
            input_batch: InputBatch,
            cudagraph_mode: CUDAGraphMode,
            *args: Any,
            for_capture: bool = False,
            **kwargs: Any,
        ) -> dict[str, Any]:
            layout = None if self._latent is None else self._latent.lay_out(input_batch, for_capture)
            with verifying(layout, input_batch, padded=cudagraph_mode == CUDAGraphMode.FULL):
                metadata: dict[str, Any] = super().prepare_attn(
                    input_batch, cudagraph_mode, *args, for_capture=for_capture, **kwargs
                )
            if layout is not None and self._latent is not None:
                layout.attach(metadata, self._latent_names, self._latent.causal)
            return metadata

    return LatentChainState

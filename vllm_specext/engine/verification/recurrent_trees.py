"""How draft trees, and chains, are told to the target's layers with a recurrent state."""

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.recurrent.layers import RecurrentLayers
from vllm_specext.engine.verification.layout import AcceptedPaths, TreeLayout
from vllm_specext.kernels.recurrent import TreeRows, rows_before
from vllm_specext.tree.topology import Topology


@replaces(
    "vllm.v1.worker.gpu.input_batch.InputBatch.prefill_runs_as_decode_np",
    name="drafts of prompts of one token",
    why="vLLM takes drafts that are scheduled with such a prompt for a part of it, whose states could not be undone",
    how="set for all requests that have drafts: a prompt's last token is verified with them, as a tree's root",
    upstream="none known",
    until="vLLM schedules no drafts with a prompt's first token",
    kind="set",
)
def verify_as_decoding(batch: InputBatch) -> None:
    """Have vLLM's metadata of ``batch`` take all requests with drafts for such that decode."""
    if (drafted := batch.num_draft_tokens_per_req) is not None and (drafted > 0).any():
        others = batch.prefill_runs_as_decode_np
        batch.prefill_runs_as_decode_np = drafted > 0 if others is None else others | (drafted > 0)


def without_state(batch: InputBatch, requests: int) -> np.ndarray:
    """Places of those of the first ``requests`` that have computed nothing yet."""
    return np.flatnonzero(batch.num_computed_tokens_np[:requests] == 0)


class RecurrentTrees:
    """Trees of up to ``nodes`` nodes, root included, of up to ``requests`` requests."""

    @classmethod
    def of(cls, vllm_config: VllmConfig, requests: int, device: torch.device) -> "RecurrentTrees | None":
        """``None`` for a target that has no such layers."""
        layers = RecurrentLayers.of(vllm_config, device)
        nodes = vllm_config.speculative_config.tree.nodes + 1
        return None if layers is None else cls(layers, requests, nodes, device)

    def __init__(self, layers: RecurrentLayers, requests: int, nodes: int, device: torch.device) -> None:
        self.layers = layers
        # A captured graph reads them.
        self._before = torch.zeros(requests, nodes, layers.taps - 1, dtype=torch.int32, device=device)

    def begin(self, batch: InputBatch, metadata: dict[str, Any], layout: TreeLayout) -> None:
        """Have the step over ``batch``, with this ``metadata``, see the trees of ``layout``."""
        before = self._before[: layout.requests, : layout.query]
        before.copy_(rows_before(layout.visible, self.layers.taps))
        captured = layout.chain_positions is None  # for whatever trees replays have
        levels = min(self.layers.levels if captured else layout.levels, layout.query - 1)
        rows = TreeRows(layout.starts, layout.visible, before, layout.rows, levels)
        self.layers.attach(metadata, rows, batch, without_state(batch, 0 if captured else layout.requests))

    def accept(self, metadata: dict[str, Any], paths: AcceptedPaths, counts: Tensor) -> None:
        """The first ``counts`` ``[V]`` nodes of the ``paths`` were accepted."""
        self.layers.advance(metadata, paths.source, counts)


class RecurrentChains:
    """Chains of up to ``nodes`` nodes, root included, of up to ``requests`` requests. What vLLM draws says how much of
    them is accepted."""

    def __init__(self, layers: RecurrentLayers, requests: int, nodes: int, device: torch.device) -> None:
        self.layers = layers
        self._visible = Topology.chain(requests, nodes - 1, device).ancestors
        self._before = rows_before(self._visible, layers.taps)
        self._places = torch.arange(nodes, device=device)
        self._begun: tuple[dict[str, Any], TreeRows] | None = None

    def forget_caches(self) -> None:
        """Hold nothing of the caches that the layers have now, nor of the last step."""
        self._begun = None
        self.layers.forget_caches()

    def begin(self, metadata: dict[str, Any], batch: InputBatch, for_capture: bool) -> None:
        """Have a step with this ``metadata`` see the chains of ``batch``, which are its first rows."""
        counts = batch.num_scheduled_tokens if for_capture else batch.num_draft_tokens_per_req
        requests = 0 if counts is None else int(np.count_nonzero(counts > for_capture))
        self._begun = None
        if requests == 0:
            return
        query = int(batch.num_scheduled_tokens[:requests].max())
        rows = TreeRows(
            batch.query_start_loc[: requests + 1],
            self._visible[:requests, :query],
            self._before[:requests, :query],
            int(batch.query_start_loc_np[requests]),
            query - 1,
        )
        self.layers.attach(metadata, rows, batch, without_state(batch, 0 if for_capture else requests))
        self._begun = metadata, rows

    def accept(self, num_sampled: Tensor) -> None:
        """``num_sampled`` ``[R]``: how many tokens the step gave each request; as many rows of its chain go on."""
        if self._begun is not None:
            metadata, rows = self._begun
            counts = num_sampled[: len(rows.starts) - 1]
            place = torch.minimum(self._places, counts[:, None] - 1).clamp(min=0)
            self.layers.advance(metadata, rows.starts[:-1, None] + place, counts)
            self._begun = None


@cache
def with_recurrent_chains(base: Any) -> Any:
    """Subclass of ``base``, vLLM's per-model state, for targets whose layers may have recurrent states."""

    class RecurrentChainState(base):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            layers = RecurrentLayers.of(self.vllm_config, self.device)
            nodes = self.vllm_config.speculative_config.levels + 1
            self._chains = None if layers is None else RecurrentChains(layers, self.max_num_reqs, nodes, self.device)

        def forget_caches(self) -> None:
            if self._chains is not None:
                self._chains.forget_caches()

        def prepare_attn(
            self, input_batch: InputBatch, *args: Any, for_capture: bool = False, **kwargs: Any
        ) -> dict[str, Any]:
            if self._chains is not None:
                verify_as_decoding(input_batch)
            metadata: dict[str, Any] = super().prepare_attn(input_batch, *args, for_capture=for_capture, **kwargs)
            if self._chains is not None:
                self._chains.begin(metadata, input_batch, for_capture)
            return metadata

        def postprocess_state(self, idx_mapping: Tensor, num_sampled: Tensor | int, *args: Any, **kwargs: Any) -> None:
            if self._chains is not None and isinstance(num_sampled, Tensor):
                self._chains.accept(num_sampled)
            super().postprocess_state(idx_mapping, num_sampled, *args, **kwargs)

    return RecurrentChainState

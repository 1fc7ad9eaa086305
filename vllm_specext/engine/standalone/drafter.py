"""A standalone drafter: a language model with its own configuration, layers and cache.

vLLM's runner knows nothing of its layers. They are registered in a context of their own, and what they need in a pass
comes from here.
"""

from contextlib import AbstractContextManager
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from vllm.compilation.backends import set_model_tag
from vllm.config import VllmConfig, replace
from vllm.forward_context import set_forward_context
from vllm.model_executor.model_loader import get_model_loader
from vllm.platforms import current_platform
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_specext.cpu_runner.recording import records_passes
from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.drafting.node_passes import NodePasses, Nodes, in_order
from vllm_specext.engine.drafting.run_model import run_model
from vllm_specext.engine.kv_connector import passes_unseen
from vllm_specext.engine.standalone.cache import StandaloneCache, TextRows
from vllm_specext.engine.standalone.captured_passes import SINGLE, CapturedPasses, PassKind
from vllm_specext.engine.verification.attention import wrap_draft_layers
from vllm_specext.methods.checkpoints import finite
from vllm_specext.tree.topology import pack

SHORT = (8, 32)
"""Numbers of tokens up to which texts that go on are read as tree nodes, where that runs in a graph: what follows the
last step, and what follows it for drafters that spell words in bytes."""

RECORDED_SHORT = (1, 2, 3, 4, 6, 8, 12, 16, 32)
"""The same where passes are recorded, of which there may be many, and where every row of padding costs arithmetic."""

MOST_SHORT_ROWS = 512
"""Most rows of such a pass, which are mostly padding. More would take a GPU longer than their launches take the host;
an estimate."""


def standalone_config(vllm_config: VllmConfig) -> VllmConfig:
    """vLLM's configuration for the drafter of ``vllm_config`` alone."""
    drafting = vllm_config.speculative_config
    assert drafting is not None
    cache = copy(vllm_config.cache_config)
    cache.cache_dtype = "auto"
    cache.num_gpu_blocks_override = None
    cache.mamba_block_size = None
    cache.kv_offloading_size = None  # of which vLLM would make a connector
    compilation = copy(vllm_config.compilation_config)
    compilation.static_forward_context = {}
    compilation.static_all_moe_layers = []
    compilation.traced_files = set()
    return replace(
        vllm_config,
        model_config=drafting.draft_model_config,
        parallel_config=replace(drafting.draft_parallel_config, rank=vllm_config.parallel_config.rank),
        cache_config=cache,
        compilation_config=compilation,
        speculative_config=None,
        quant_config=None,
        lora_config=None,
        kv_transfer_config=None,
    )


@replaces(
    "vllm.model_executor.model_loader.default_loader.DefaultModelLoader.get_all_weights",
    name="drafter's weights",
    why="vLLM loads NaN and infinities without a word, and a drafter with them drafts nothing that is accepted",
    how="wrapped on the one loader that reads a drafter with a tokenizer of its own: such a tensor is refused by name",
    upstream="none: vLLM checks no values",
    until="vLLM checks the values that it loads",
    signature="self model_config model",
)
def _load(config: VllmConfig) -> nn.Module:
    """The drafter's model, its weights checked on their way from the file."""
    loader: Any = get_model_loader(config.load_config)
    read = getattr(loader, "get_all_weights", None)  # formats that are already laid out for the device have none
    if read is not None:
        loader.get_all_weights = lambda model_config, model: finite(model_config.model, read(model_config, model))
    model: nn.Module = loader.load_model(vllm_config=config, model_config=config.model_config, prefix="draft_model")
    return model


class StandaloneDrafter:
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        self.config, self.device = standalone_config(vllm_config), device
        self._unseen = passes_unseen(vllm_config)
        with set_model_tag("draft_model"):
            self.model = _load(self.config)
        current_platform.update_block_size_for_backend(self.config)
        self.cache = StandaloneCache(self.config, device)
        scheduler = self.config.scheduler_config
        self._single = torch.arange(scheduler.max_num_seqs + 1, dtype=torch.int32, device=device)
        self._single_np = np.arange(scheduler.max_num_seqs + 1, dtype=np.int32)
        self.passes: NodePasses[Tensor] = NodePasses(self._over_nodes, self.cache.max_len)
        self.nodes = CapturedPasses(self.passes, scheduler.max_num_batched_tokens)
        self.short = RECORDED_SHORT if records_passes(vllm_config) else SHORT
        """Widths of the passes that read short texts."""
        self._causal_bits: dict[int, Tensor] = {}

    def initialize_cache(self, layout: str | None, memory: AbstractContextManager) -> None:
        """Give the layers their pages in vLLM's ``layout``, allocated in ``memory``; what was there is lost."""
        self.cache.initialize(layout, memory)
        self.passes.groups = [self.cache.group]

    def rehearse(self, rows: int) -> None:
        """A pass of ``rows`` without attention, for vLLM's profile of the memory."""
        ids = torch.zeros(rows, dtype=torch.int32, device=self.device)
        with set_forward_context(None, self.config, num_tokens=rows):
            self.model(input_ids=ids, positions=ids.long())

    def read(self, ids: np.ndarray, firsts: np.ndarray, counts: np.ndarray, request_slots: Tensor) -> Tensor:
        """Read the next ``counts`` ``[A]`` tokens of each request, all in ``ids`` ``[T]``, after the ``firsts`` ``[A]``
        that it has read; hidden states ``[A, d]`` of the last tokens. ``request_slots`` ``[A]``."""
        requests, longest = len(counts), counts.max()
        width = next((width for width in self.short if width >= longest and width * requests <= MOST_SHORT_ROWS), 0)
        if self.nodes.replays(PassKind(width, width), requests):
            return self._read_short(ids, firsts, counts, width)
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        positions = np.arange(starts[-1]) + np.repeat(firsts - starts[:-1], counts)
        given = np.concatenate((ids, positions, starts, firsts + counts))
        # One copy instead of four.
        on_device = async_tensor_h2d(given, device=self.device, dtype=torch.int64)
        split = on_device.split([len(ids), len(ids), len(starts), len(counts)])
        rows = TextRows(
            starts=split[2].int(),
            starts_np=starts,
            positions=split[1],
            seq_lens=split[3].int(),
            longest=int((firsts + counts).max()),
            writes=request_slots,
        )
        return self._run(split[0], rows)[split[2][1:] - 1]

    def step(self, ids: Tensor, positions: Tensor, writes: Tensor, longest: int) -> Tensor:
        """The next token ``[A]`` of each request, at ``positions`` ``[A]``; hidden states ``[A, d]``, which the next
        pass may overwrite. Requests whose entry of ``writes`` ``[A]`` is -1 instead of their request slot keep nothing
        of it.
        """
        count = len(ids)
        if self.nodes.replays(SINGLE, count):
            places = positions[:, None]
            visible = self._causal(1).expand(count, 1, 1)
            return self.nodes(
                Nodes(ids[:, None], places, places, (writes >= 0)[:, None], positions, visible), 1, longest
            )
        rows = TextRows(
            starts=self._single[: count + 1],
            starts_np=self._single_np[: count + 1],
            positions=positions,
            seq_lens=(positions + 1).int(),
            longest=min(longest, self.cache.max_len),
            writes=writes,
        )
        return self._run(ids, rows)

    def append(self, ids: Tensor, counts: Tensor, ends: Tensor, longest: int) -> Tensor:
        """Read the first ``counts`` ``[A]`` of ``ids`` ``[A, q]`` after texts of ``ends`` ``[A]`` tokens, the
        ``longest`` at most; hidden states ``[A, d]`` of the last tokens."""
        requests, width = ids.shape
        place = torch.arange(width, device=self.device)
        slots = ends[:, None] + place
        last = (counts - 1).clamp(min=0)
        given = Nodes(ids, slots, slots, place < counts[:, None], ends, in_order(self._causal(width), last))
        lasts = torch.arange(requests, device=self.device) * width + last
        return self.nodes(given, width, longest + width)[lasts]

    def grow_trees(self, levels: int) -> None:
        """Have ``nodes`` work, for trees of at most ``levels`` levels; ``ConfigurationError`` where it cannot."""
        layers = self.config.compilation_config.static_forward_context
        wrap_draft_layers([layers[name] for name in self.cache.layer_names], levels)

    def _read_short(self, ids: np.ndarray, firsts: np.ndarray, counts: np.ndarray, width: int) -> Tensor:
        padded = np.zeros((len(counts), width), dtype=np.int64)
        padded[np.arange(width) < counts[:, None]] = ids
        given = np.concatenate((padded, counts[:, None], firsts[:, None]), axis=1)
        on_device = async_tensor_h2d(given, device=self.device)
        return self.append(on_device[:, :width], on_device[:, width], on_device[:, width + 1], int(firsts.max()))

    def _causal(self, width: int) -> Tensor:
        if width not in self._causal_bits:
            self._causal_bits[width] = pack(torch.ones(width, width, dtype=torch.bool, device=self.device).tril())
        return self._causal_bits[width]

    def _run(self, ids: Tensor, rows: TextRows) -> Tensor:
        metadata, mappings = self.cache.attention(rows)
        with self._unseen():
            return run_model(self.model, self.config, ids, rows.positions, metadata, mappings)

    def _over_nodes(
        self, nodes: Nodes, metadata: dict[str, Any] | None, slot_mappings: dict[str, Tensor] | None
    ) -> Tensor:
        with self._unseen():
            return run_model(self.model, self.config, nodes.ids, nodes.positions, metadata, slot_mappings)

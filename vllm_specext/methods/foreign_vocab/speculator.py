"""Drafting with a language model whose tokenizer is not the target's.

The drafter reads the same text in tokens of its own. After a step the text's new end is taken to the host, each
request's bridge (``text/bridge.py``) turns it into the drafter's tokens, the drafter reads those that its cache does
not hold, and a method drafts from there. This waits for the device once a step, because text is on the host; a method
may wait more often. A request gets no draft while the drafter has not read all of its text (a long prompt takes several
steps), where the text is longer than the drafter's context, and where the drafter's cache has no room for it.
Shapes: ``R`` requests of the step, ``A`` of them active (drafted for), ``K`` drafted tokens, ``d`` hidden size.
"""

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import starmap
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.drafting.graphs import draft_graphs
from vllm_specext.engine.drafting.new_tokens import new_tokens
from vllm_specext.engine.drafting.recorded_passes import RecordedPasses
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.step import Drafts, Step
from vllm_specext.engine.graph_sizes import few_sizes
from vllm_specext.engine.kept_memory import cache_memory
from vllm_specext.engine.requests import Drafting
from vllm_specext.engine.standalone.captured_passes import SINGLE, PassKind
from vllm_specext.engine.standalone.drafter import StandaloneDrafter
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.foreign_vocab.pairing import read_pairing
from vllm_specext.methods.foreign_vocab.texts import Active, Text

Result = TypeVar("Result")

THREADS = 4
"""Threads that work on texts; tokenizers let go of the interpreter's lock while they work."""


class ForeignSpeculator(StepSpeculator):
    """The common part of the methods with a foreign tokenizer; each brings its own ``draft_for`` and ``room``."""

    tree_levels = 1
    """Depth of the trees that the drafter grows in its own cache; 1 where it grows none."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.options: Any = self.speculative_config.options
        self.target_vocab_size: int = vllm_config.model_config.get_vocab_size()
        self.pairing = read_pairing(vllm_config.model_config, self.draft_model_config)
        self.texts: dict[int, Text] = {}
        self.can_be_captured = True
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="specext-text")
        self.make_buffers()

    def make_buffers(self) -> None:
        """Make what a method keeps on the device."""

    def forget(self, slots: Tensor) -> None:
        """Take note that nothing is drafted yet for the requests in ``slots`` ``[R]``."""

    def room(self, nodes: int) -> int:
        """Number of KV slots after a text that drafting ``nodes`` tokens of the target may write."""
        raise NotImplementedError

    def draft_for(self, active: Active, nodes: int, temperature: Tensor, seeds: Tensor) -> tuple[Tensor, np.ndarray]:
        """Tokens of the target ``[A, nodes]`` and how many of them count, ``[A]``; ``temperature`` and ``seeds`` are
        those of all slots."""
        raise NotImplementedError

    def captured_kinds(self) -> Collection[PassKind]:
        """The passes over tree nodes that ``draft_for`` makes; a ``step`` is one too."""
        return (SINGLE,)

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        self.drafter = StandaloneDrafter(self.vllm_config, self.device)
        self.cache = self.drafter.cache
        try:
            self.drafter.grow_trees(self.tree_levels)
        except ConfigurationError:
            if self.tree_levels > 1:
                raise
            self.can_be_captured = False
        return self.drafter.model

    def set_attn(self, model_state: Any, kv_cache_config: Any, *args: Any) -> None:
        self.drafter.initialize_cache(self.vllm_config.cache_config.kv_cache_layout, cache_memory(self.vllm_config))
        self.texts.clear()
        self.model_state = model_state
        model_state.tell(self._begin)
        self.attn_groups: list[list[Any]] = []

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        mode = cudagraph_mode if self.can_be_captured else CUDAGraphMode.NONE
        self.draft_graphs = draft_graphs(self.vllm_config, self.device, mode, few_sizes(self.vllm_config))
        if isinstance(self.draft_graphs, RecordedPasses) and self.can_be_captured:
            self.capture()

    def capture(self) -> None:
        """All passes but those that read long texts."""
        if self.draft_graphs is not None and self.draft_graphs.needs_capture():
            kinds = {*(PassKind(width, width) for width in self.drafter.short), *self.captured_kinds()}
            self.drafter.nodes.capture(self.draft_graphs, kinds, self.device, self.cache.max_len)

    def draft(self, step: Step) -> Drafts:
        requests = step.requests
        if step.dummy:
            self.drafter.rehearse(min(step.batch.num_tokens, self.max_num_tokens))
            return Drafts(self.draft_tokens[:requests])
        drafted = self.draft_tokens[:requests, : step.length].zero_()
        lengths = np.zeros(requests, dtype=np.int64)
        self.forget(step.batch.idx_mapping)
        active = self._read(step) if step.length else None
        if active is not None:
            tokens, counts = self.draft_for(active, step.length, step.temperature, step.seeds)
            drafted[async_tensor_h2d(active.places, device=self.device)] = tokens
            lengths[active.places] = counts
        return Drafts(drafted, lengths)

    def _read(self, step: Step) -> Active | None:
        """Have the drafter read what is new; the requests whose texts it has read to their end, if any."""
        batch = step.batch
        due = self._due(batch, self._follow(step), self.room(step.length))
        if not due:
            return None
        texts = [text for _, text, _ in due]
        places, counts = (np.array([each[column] for each in due]) for column in (0, 2))
        firsts = np.array([text.cached for text in texts])
        ids = np.concatenate([text.bridge.draft_ids[text.cached :][:n] for text, n in zip(texts, counts, strict=True)])
        slots = async_tensor_h2d(batch.idx_mapping_np[places], device=self.device, dtype=torch.int64)
        self.cache.begin(slots)
        hidden = self.drafter.read(ids, firsts, counts, slots)
        ends = firsts + counts
        for text, end in zip(texts, ends.tolist(), strict=True):
            text.cached = end
        whole = np.array([text.cached == len(text.bridge.draft_ids) for text in texts])
        if not whole.any():
            return None
        if not whole.all():
            chosen = async_tensor_h2d(np.flatnonzero(whole), device=self.device)
            slots, hidden = slots[chosen], hidden[chosen]
            self.cache.begin(slots)
        texts = [text for text, is_whole in zip(texts, whole, strict=True) if is_whole]
        lengths = np.stack((ends[whole], [text.known for text in texts]))
        on_device = async_tensor_h2d(lengths, device=self.device)
        return Active(places[whole], slots, texts, ends[whole], on_device[0], on_device[1], hidden)

    def _due(self, batch: InputBatch, places: list[int], room: int) -> list[tuple[int, Text, int]]:
        """Place, text and number of tokens to read of the requests that have room, within one pass."""
        slots = batch.idx_mapping_np.tolist()
        waiting = self.texts.keys() - slots
        due, left = [], self.max_num_tokens
        for place in places:
            slot, text = slots[place], self.texts[slots[place]]
            length = len(text.bridge.draft_ids)
            if not 0 < length <= self.cache.max_len - room:
                self.cache.release(slot)
                continue
            # The last token is read in any case: what follows it is wanted.
            text.cached = min(text.cached, length - 1) if self.cache.holds(slot) else 0
            if left and self.cache.take(slot, length + room, waiting):
                due.append((place, text, min(length - text.cached, left)))
                left -= due[-1][2]
        return due

    def _follow(self, step: Step) -> list[int]:
        """Take what the texts have grown by; the places of the requests that have sampled a token in this step and want
        drafts."""
        batch = step.batch
        new = new_tokens(step, self.req_states.all_token_ids.gpu, self.num_speculative_steps + 1)
        wanted = self.model_state.drafting[batch.idx_mapping_np] != Drafting.OFF
        places: list[int] = new.decided[wanted[new.decided]].tolist()
        grown = []
        for place in places:
            text = self._text(int(batch.idx_mapping_np[place]), batch.req_ids[place], int(new.lengths[place]))
            grown.append((text, new.after(place, text.known)))
        self.in_threads(Text.grow, grown)
        return places

    def _begin(self, slot: int, _: Any) -> None:
        """A request comes, or comes back: it may have lost tokens that its text has, as the turns of a session do."""
        self.texts.pop(slot, None)
        self.cache.release(slot)

    def _text(self, slot: int, request: str, length: int) -> Text:
        """The text of a request that has now ``length`` tokens, more than before."""
        text = self.texts.get(slot)
        # A slot goes to another request without a word. Tokens of a preempted one may be drawn again.
        if text is None or text.request != request or text.known >= length:
            self.cache.release(slot)
            text = self.texts[slot] = Text(request, self.pairing.bridge(self.options.lookbehind))
        return text

    def in_threads(self, task: Callable[..., Result], arguments: Iterable[tuple[Any, ...]]) -> list[Result]:
        given = list(arguments)
        if len(given) == 1:
            return list(starmap(task, given))
        return list(self.threads.map(lambda own: task(*own), given))

"""vLLM's KV connectors on a CPU: its offloading, whose own worker wants a GPU, and the layer-wise one of its examples.

The worker copies as late as a GPU may: when vLLM asks for what has finished, in the third step after it was told to, or
when vLLM waits for it, and what was written meanwhile is in the copy.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

LATE = 3
"""Steps from a transfer to its copy."""


def offloading() -> dict[str, Any]:
    """Engine arguments. What is computed twice is loaded the second time, since vLLM itself keeps no prefixes."""
    own = {"spec_name": "Offloading", "spec_module_path": __name__}
    config = connector("OffloadingConnector", own)
    return {"kv_offloading_size": 1.0, "kv_transfer_config": config, "enable_prefix_caching": False}


def in_files(folder: Path) -> dict[str, Any]:
    """Engine arguments for the connector of vLLM's examples, which saves every layer of prompts within the pass."""
    own = {"shared_storage_path": str(folder)}
    return {"kv_transfer_config": connector("ExampleConnector", own), "enable_prefix_caching": False}


def connector(name: str, own: dict[str, Any]) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": own}


@dataclass
class Transfer:
    job: int
    pages: GPULoadStoreSpec
    chunks: list[int]
    loads: bool
    age: int = 0
    copied: bool = False


class LateCopies(OffloadingWorker):
    def __init__(self, caches: CanonicalKVCaches) -> None:
        self.caches = [one.tensor for one in caches.tensors]
        """Pages by layer, ``[pages, bytes]``; those of a drafter come last."""
        self.groups = [[ref.tensor_idx for ref in refs] for refs in caches.group_data_refs]
        self.kept: dict[tuple[int, int], Tensor] = {}
        self.transfers: list[Transfer] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self.transfers.append(Transfer(job_id, src_spec, dst_spec.block_ids.tolist(), loads=False))
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self.transfers.append(Transfer(job_id, dst_spec, src_spec.block_ids.tolist(), loads=True))
        return True

    def get_finished(self) -> list[TransferResult]:
        for transfer in self.transfers:
            transfer.age += 1
        done = [transfer for transfer in self.transfers if transfer.age >= LATE]
        self.transfers = [transfer for transfer in self.transfers if transfer.age < LATE]
        for transfer in done:
            self.copy(transfer)
        return [TransferResult(transfer.job, success=True) for transfer in done]

    def wait(self, job_ids: set[int]) -> None:
        for transfer in self.transfers:
            if transfer.job in job_ids:
                self.copy(transfer)

    def copy(self, transfer: Transfer) -> None:
        if transfer.copied:
            return
        transfer.copied = True
        pages = transfer.pages
        sizes = pages.group_sizes or [len(pages.block_ids)]
        groups = [group for group, size in zip(self.groups, sizes, strict=True) for _ in range(size)]
        for layers, page, chunk in zip(groups, pages.block_ids.tolist(), transfer.chunks, strict=True):
            for layer in set(layers):
                if transfer.loads:
                    self.load(layer, page, self.kept[layer, chunk])
                else:
                    self.kept[layer, chunk] = self.caches[layer][page].clone()

    def load(self, layer: int, page: int, kept: Tensor) -> None:
        self.caches[layer][page] = kept


class Offloading(CPUOffloadingSpec):
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        assert self.blocks_per_chunk == 1
        return LateCopies(kv_caches)


TARGETS_LAYERS = 12


def load_other_numbers() -> None:
    """Nothing but zeros is loaded."""
    LateCopies.load = lambda self, layer, page, kept: self.caches[layer][page].zero_()  # type: ignore[assignment, method-assign, return-value]


def load_nothing_of_the_drafter() -> None:
    """A drafter's keys and values are lost on their way."""
    stock = LateCopies.load

    def load(self: LateCopies, layer: int, page: int, kept: Tensor) -> None:
        stock(self, layer, page, kept if layer < TARGETS_LAYERS else kept.new_zeros(kept.shape))

    LateCopies.load = load  # type: ignore[method-assign]


def show_the_connector_every_pass() -> None:
    """The layers of a drafter with pages of its own call the connector as well."""
    from contextlib import nullcontext

    import vllm_specext.engine.standalone.drafter as drafter

    drafter.passes_unseen = lambda vllm_config: nullcontext

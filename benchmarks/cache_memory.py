"""Bytes of KV cache that a token takes in the target, and that a drafter adds.

    python -m benchmarks.cache_memory --output benchmarks/results/cpu

On the bundled models in float32 they are read from the cache that a started engine allocates: what a drafter adds is
what is there beside the layers of an engine without one. For Llama 3 8B in bfloat16 they are arithmetic on the layers'
shapes; no such engine was started. Writes ``cache_memory.json``.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.own_process import bundled_engine, in_own_process
from vllm_specext.measure.bundled import GRIFFIN_TREE, MOA_TREE, SWIFT

CONFIGURATIONS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "griffin": GRIFFIN_TREE,
    "moa N=0": MOA_TREE,
    "moa N=1": MOA_TREE | {"target_layer_inference": 1},
    "swift": SWIFT,
}
Bytes = dict[str, int]
"""The bytes of a token, by layer."""


@dataclass(frozen=True)
class Layers:
    """Attention layers of one shape, in bfloat16."""

    count: int
    kv_heads: int
    head_size: int

    @property
    def bytes_per_token(self) -> int:
        """The bytes of a token's keys and values in all layers."""
        return 2 * self.count * self.kv_heads * self.head_size * 2

    def __str__(self) -> str:
        return f"2 x {self.count} layers x {self.kv_heads} heads x {self.head_size} x 2 bytes"


LLAMA_3_8B = Layers(count=32, kv_heads=8, head_size=128)
DRAFTERS_FOR_LLAMA_3_8B = {
    "griffin": Layers(count=1, kv_heads=32, head_size=128),  # published with a head for every query head
    # Self- and cross-attention, as wide as the official code trains them; what layer self-attention makes is not kept.
    "moa": Layers(count=2, kv_heads=4, head_size=128),
}


def bytes_per_token(config: Any) -> Bytes:
    """Read vLLM's ``KVCacheConfig``, where all layers are in one group.

    The group names one layer's shape for all, so that layers of other widths are told apart in the allocation alone.
    """
    (group,) = config.kv_cache_groups
    tokens = group.kv_cache_spec.block_size
    found: Bytes = {}
    for tensor in config.kv_cache_tensors:
        # Whichever is outermost, layers or blocks, the shorter stride is a page of one layer.
        page = min(tensor.layer_stride, tensor.block_stride)
        found |= dict.fromkeys(tensor.layers, page // tokens)
        allocated = tensor.size // (config.num_blocks * tokens)
    if sum(found.values()) != allocated or found.keys() != set(group.layer_names):
        raise RuntimeError(f"a token takes {allocated} bytes, but its layers {sum(found.values())}.")
    return found


def started(speculative: dict[str, Any] | None) -> Bytes:
    return bytes_per_token(bundled_engine(speculative, counts=False).core.scheduler.kv_cache_config)


def rows(measured: dict[str, Bytes]) -> list[dict[str, Any]]:
    """The bundled models' first, then Llama 3 8B's; ``measured`` has ``plain`` for the target alone."""
    target = measured["plain"]
    bundled = [
        row(
            "bundled, float32",
            name,
            "read from the engine",
            sum(found[layer] for layer in target),
            sum(size for layer, size in found.items() if layer not in target),
        )
        for name, found in measured.items()
        if name != "plain"
    ]
    size = LLAMA_3_8B.bytes_per_token
    return bundled + [
        row("Llama 3 8B, bfloat16", name, f"arithmetic: {layers} beside {LLAMA_3_8B}", size, layers.bytes_per_token)
        for name, layers in DRAFTERS_FOR_LLAMA_3_8B.items()
    ]


def row(target: str, drafter: str, origin: str, target_bytes: int, drafter_bytes: int) -> dict[str, Any]:
    return {
        "target": target,
        "drafter": drafter,
        "origin": origin,
        "target_bytes_per_token": target_bytes,
        "drafter_bytes_per_token": drafter_bytes,
        "drafter_share": round(drafter_bytes / target_bytes, 4),
    }


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="bytes of KV cache per token")
    for column in ("target", "drafter"):
        shown.add_column(column, no_wrap=True)
    for column in ("target's", "drafter's", "more"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("origin")
    for one in rows:
        shown.add_row(
            one["target"],
            one["drafter"],
            str(one["target_bytes_per_token"]),
            str(one["drafter_bytes_per_token"]),
            f"{one['drafter_share']:.1%}",
            one["origin"].partition(":")[0],
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for cache_memory.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(started(json.loads(args.one))))
        return
    found = rows(
        {
            name: in_own_process("benchmarks.cache_memory", name, speculative)
            for name, speculative in track(CONFIGURATIONS.items(), description="starting engines")
        }
    )
    Console().print(table(found))
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "cache_memory.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

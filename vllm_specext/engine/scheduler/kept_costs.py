"""What steps cost, kept in a file for the next start on the same machine with the same model and settings.

What a start measures first is not worth much: passes are compiled and recorded meanwhile. So it is the steps of the
service that are timed, and a restart goes on from there. The file is a cache: one that is damaged, or another's, counts
as none, and what it says is checked against the clock again.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import vllm_specext
from vllm_specext.this_machine import cache_folder, is_own, processor
from vllm_specext.tree.draft_size import DraftSize
from vllm_specext.tree.step_costs import Costs

logger = logging.getLogger(f"vllm.{__name__}")  # a child of vLLM's logger, whose handlers and level it shares

MOST_BYTES = 1 << 16
"""A file of more is none of ours."""

Logarithm = Annotated[float, Field(ge=-5, le=5)]
Variance = Annotated[float, Field(ge=0, le=25)]


class Kept(BaseModel):
    """The file: by range of running requests (the number of bits of the requests) a list of sizes: drafted tokens,
    depth, logarithm of the cost and its variance."""

    model_config = ConfigDict(extra="forbid")

    loads: dict[int, list[tuple[int, int, Logarithm, Variance]]]


class KeptCosts:
    def __init__(self, vllm_config: Any) -> None:
        self.path = path_for(vllm_config)

    def read(self) -> Mapping[int, Costs]:
        """What was kept, nothing where there is no file that can be used."""
        if self.path is None:
            return {}
        try:
            found = self.path.lstat()
            if not is_own(found) or found.st_size > MOST_BYTES:
                return {}
            loads = Kept.model_validate_json(self.path.read_bytes()).loads
        except (OSError, ValidationError):
            return {}
        return {
            load: {DraftSize(nodes, levels): (logarithm, variance) for nodes, levels, logarithm, variance in sizes}
            for load, sizes in loads.items()
        }

    def write(self, loads: Mapping[int, Costs]) -> None:
        """Keep this in place of what was kept; several engines may, and the last one counts."""
        if self.path is None:
            return
        kept = {
            load: [(size.nodes, size.levels, *cost) for size, cost in costs.items()] for load, costs in loads.items()
        }
        try:
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, prefix=".costs-", delete=False) as file:
                try:
                    json.dump({"loads": kept}, file)
                    file.flush()
                    os.replace(file.name, self.path)
                except OSError:
                    os.unlink(file.name)
                    raise
        except OSError as error:
            logger.info("What steps cost cannot be kept (%s).", type(error).__name__)
            self.path = None


def path_for(vllm_config: Any) -> Path | None:
    """The file for a launch; ``None`` where there is no place for one, or where the user wants none."""
    options = vllm_config.speculative_config.options
    if not options.keep_step_costs:
        return None
    try:
        folder = cache_folder() / "step-costs"
        folder.mkdir(mode=0o700, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder / f"{digest(vllm_config)}.json"


def digest(vllm_config: Any) -> str:
    """Of everything that decides what a step costs."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    parts = (
        vllm_specext.__version__,
        vllm_config.compute_hash(),
        vllm_config.speculative_config.options.model_dump_json(),
        device,
        str(torch.get_num_threads()),
        str(vllm_config.scheduler_config.async_scheduling),
        # Kernels may be switched off, on a CPU.
        *(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("VLLM_SPECEXT_")),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

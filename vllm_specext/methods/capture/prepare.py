"""What capturing needs before vLLM builds its configuration: no cached prefixes, and memory for the states."""

import os

import torch

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.stock.prepare import check_target
from vllm_specext.options.capture import CaptureOptions
from vllm_specext.refusals import Launch
from vllm_specext.tree.budget import MANY

GIB = 2**30

MOST_MEMORY = 0.8
"""The largest share of the machine's memory that kept states may take."""


def prepare(options: CaptureOptions, launch: Launch) -> Prepared:
    """Check the launch. Raises ``ConfigurationError``."""
    if launch.arguments.enable_prefix_caching is not False:
        raise ConfigurationError(
            f"--enable-prefix-caching is {launch.arguments.enable_prefix_caching}, but has to be off "
            "(--no-enable-prefix-caching) with method 'capture', because tokens that are cached have no hidden states."
        )
    _check_layers(options, launch)
    _check_memory(options, launch.model.get_hidden_size())
    return Prepared({"num_speculative_tokens": 1, "num_speculative_tokens_per_batch_size": [[1, MANY, 0]]})


def _check_layers(options: CaptureOptions, launch: Launch) -> None:
    """Refuse layers that the target does not have, and a target that does not give their states."""
    layers, last = options.aux_layers, launch.model.get_total_num_hidden_layers() - 1
    if layers is None:
        return
    if layers != sorted(set(layers)) or not 1 <= layers[0] <= layers[-1] <= last:
        raise ConfigurationError(
            f"speculative-config key 'aux_layers' is {layers}, but numbers from 1 to {last} are allowed, each larger "
            "than the one before."
        )
    check_target(options.method, launch)


def _check_memory(options: CaptureOptions, width: int) -> None:
    states = 1 + len(options.aux_layers or [])
    size = options.capture_tokens * states * width * getattr(torch, options.feature_dtype).itemsize
    most = MOST_MEMORY * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > most:
        raise ConfigurationError(
            f"speculative-config key 'capture_tokens' is {options.capture_tokens}, whose states take "
            f"{size / GIB:.1f} GiB of memory, but at most {most / GIB:.1f} GiB are allowed here: "
            f"{int(options.capture_tokens * most / size)} tokens."
        )

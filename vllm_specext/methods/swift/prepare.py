"""What SWIFT needs before vLLM builds its configuration: a target whose layers it can skip, and a file to write to."""

import os
from pathlib import Path
from typing import Any

from vllm_specext.architectures import LLAMA_LIKE
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.swift.search.skip_set import num_skipped
from vllm_specext.methods.swift.search.stored import Target, check_target, read_found
from vllm_specext.options.swift import SwiftOptions
from vllm_specext.refusals import Launch


def prepare(options: SwiftOptions, launch: Launch) -> Prepared:
    """Check the target and the keys that name files. Raises ``ConfigurationError``."""
    target = describe(launch.model)
    if target.architecture not in LLAMA_LIKE:
        raise ConfigurationError(
            f"method 'swift' cannot skip layers of a {target.architecture}; it knows {', '.join(LLAMA_LIKE)}."
        )
    num_skipped(target.layers, options.swift_skip_ratio)
    if options.swift_layers is not None:
        path = Path(options.swift_layers)
        check_target(path, read_found(path), target)
    check_save(options)
    return Prepared(options.for_vllm())


def check_save(options: SwiftOptions) -> None:
    """Refuse a ``swift_save`` that nothing would be written to, or that cannot be written."""
    if options.swift_save is None:
        return
    key, path = f"speculative-config key 'swift_save' is {options.swift_save!r}", Path(options.swift_save)
    if options.swift_layers is not None:
        raise ConfigurationError(
            f"{key}, but nothing is searched for with 'swift_layers': only one of the two is allowed."
        )
    if options.swift_max_steps == 0:
        raise ConfigurationError(
            f"{key}, but nothing is searched for when 'swift_max_steps' is 0: 1 or more is allowed."
        )
    if path.is_dir() or not (path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK)):
        raise ConfigurationError(f"{key}, but has to be a file in a folder that exists and can be written to.")


def describe(model: Any) -> Target:
    """The target whose ``ModelConfig`` is ``model``."""
    return Target(
        model=model.model,
        architecture=model.architectures[0],
        layers=model.hf_text_config.num_hidden_layers,
        hidden_size=model.get_hidden_size(),
        vocab_size=model.get_vocab_size(),
    )

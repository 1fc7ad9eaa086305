"""vLLM's KV connectors: they load keys and values from elsewhere and save them there, page by page, of all layers that
vLLM knows. A drafter beside the target is among these; one with pages of its own is not."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from vllm.config import VllmConfig

from vllm_specext.engine.changes.replacements import replaces


def moves_layers(arguments: Any) -> bool:
    """Whether these engine arguments name a connector that says of itself that its work on each layer cannot be part of
    a CUDA graph. ``False`` also for one that cannot be imported, of which vLLM tells the user."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    config = arguments.kv_transfer_config
    if getattr(config, "kv_connector", None) is None:
        return False
    try:
        connector: Any = KVConnectorFactory.get_connector_class(config)
    except (ImportError, AttributeError, ValueError):
        return False
    return bool(connector.requires_piecewise_for_cudagraph(config.kv_connector_extra_config))


def prefills_only(arguments: Any) -> bool:
    """Whether these engine arguments are for an instance that reads prompts, and leaves it to others to go on. The
    role is vLLM's own choice where the cache is offloaded."""
    role = getattr(arguments.kv_transfer_config, "kv_role", None)
    return role == "kv_producer" and arguments.kv_offloading_size is None


def passes_unseen(vllm_config: VllmConfig) -> Any:
    """A context for each pass of a drafter with pages of its own."""
    return hidden if vllm_config.kv_transfer_config is not None else nullcontext


@contextmanager
@replaces(
    "vllm.distributed.kv_transfer.kv_transfer_state._KV_CONNECTOR_AGENT",
    name="connector in passes of standalone drafters",
    why="vLLM's attention calls the connector for every layer, and such a drafter's layers and pages are not in it",
    how="set to None for the pass, as vLLM does while it captures graphs",
    upstream="none: vLLM knows all layers of a process",
    until="vLLM calls the connector for the layers alone that were registered with it",
    kind="set",
)
def hidden() -> Iterator[None]:
    from vllm.distributed.kv_transfer import kv_transfer_state

    connector = kv_transfer_state._KV_CONNECTOR_AGENT
    kv_transfer_state._KV_CONNECTOR_AGENT = None
    try:
        yield
    finally:
        kv_transfer_state._KV_CONNECTOR_AGENT = connector

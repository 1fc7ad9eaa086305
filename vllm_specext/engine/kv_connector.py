"""vLLM's KV connectors: they load keys and values from elsewhere and save them there, page by page, of all layers that
vLLM knows. A drafter beside the target is among these; one with pages of its own is not."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from vllm.config import KVTransferConfig, VllmConfig

from vllm_specext.engine.changes.replacements import replaces


def transfer_of(arguments: Any) -> KVTransferConfig | None:
    """What engine arguments say of connectors, where vLLM follows it: not where the cache is offloaded."""
    config = arguments.kv_transfer_config
    if arguments.kv_offloading_size is not None:
        return KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both")  # or another for the same
    return KVTransferConfig(**config) if isinstance(config, dict) else config


def connectors_of(config: KVTransferConfig | None) -> list[str]:
    """The names of a launch's connectors; those of which vLLM's ``MultiConnector`` is made, in its place."""
    return [] if config is None else list(_names(vars(config)))


def _names(config: Mapping[str, Any]) -> Iterator[str]:
    name = config.get("kv_connector")
    if name != "MultiConnector":
        yield from () if name is None else (str(name),)
        return
    parts = (config.get("kv_connector_extra_config") or {}).get("connectors")
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, Mapping):
            yield from _names(part)


def moves_layers(config: KVTransferConfig | None) -> bool:
    """Whether a launch names a connector that says of itself that its work on each layer cannot be part of a CUDA
    graph. ``False`` also for one that cannot be imported, of which vLLM tells the user."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if config is None or config.kv_connector is None:
        return False
    try:
        connector: Any = KVConnectorFactory.get_connector_class(config)
        return bool(connector.requires_piecewise_for_cudagraph(config.kv_connector_extra_config))
    except (ImportError, AttributeError, ValueError, KeyError, TypeError):
        return False


def prefills_only(config: KVTransferConfig | None) -> bool:
    """Whether a launch is an instance that reads prompts, and leaves it to others to go on."""
    return config is not None and config.kv_role == "kv_producer"


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

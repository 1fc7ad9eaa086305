"""What we ask of KV connectors before anything is loaded, and when our own passes hide them."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import has_kv_transfer_group, kv_transfer_state

from tests.unit.connectors import of_connector
from tests.unit.launches import launch
from tests.unit.test_refusals import refuse
from vllm_specext.engine.kv_connector import (
    connectors_of,
    hidden,
    moves_layers,
    passes_unseen,
    prefills_only,
    transfer_of,
)
from vllm_specext.errors import ConfigurationError

LAYERWISE = {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": {"use_layerwise": True}}


def config(name: str | None, **keys: Any) -> KVTransferConfig:
    return KVTransferConfig(**({"kv_connector": name, "kv_role": "kv_both"} | keys))


def several(*parts: object) -> KVTransferConfig:
    return config("MultiConnector", kv_connector_extra_config={"connectors": list(parts)})


def test_what_is_said_of_connectors_is_read_as_vllm_reads_it() -> None:
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
    for given in (nixl, KVTransferConfig(**nixl)):
        found = transfer_of(SimpleNamespace(kv_transfer_config=given, kv_offloading_size=None))
        assert found is not None
        assert (found.kv_connector, prefills_only(found)) == ("NixlConnector", True)
        found = transfer_of(SimpleNamespace(kv_transfer_config=given, kv_offloading_size=4.0))
        assert found is not None
        assert (found.kv_connector, prefills_only(found)) == ("OffloadingConnector", False)
    assert transfer_of(SimpleNamespace(kv_transfer_config=None, kv_offloading_size=None)) is None


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, []),
        (config("NixlConnector", kv_connector_extra_config={"connectors": [LAYERWISE]}), ["NixlConnector"]),
        (KVTransferConfig(), []),
        (
            several({"kv_connector": "NixlConnector"}, vars(several(LAYERWISE)), "unreadable", {}),
            ["NixlConnector", "LMCacheConnectorV1"],
        ),
        (config("MultiConnector", kv_connector_extra_config={"connectors": None}), []),
    ],
    ids=["none", "one", "unnamed", "several", "several of nothing"],
)
def test_connectors_are_known_by_name(given: KVTransferConfig | None, names: list[str]) -> None:
    assert connectors_of(given) == names


@pytest.mark.parametrize(
    ("given", "moves"),
    [
        (None, False),
        (config("OffloadingConnector"), False),
        (config("LMCacheConnectorV1"), False),
        (KVTransferConfig(**(LAYERWISE | {"kv_role": "kv_both"})), True),
        (several(LAYERWISE | {"kv_role": "kv_both"}), True),
        (config("OfNobody"), False),
        (config("Absent", kv_connector_module_path="no.such.module"), False),
        (several({"kv_connector": "Absent", "kv_role": "kv_both", "kv_connector_module_path": "no.such"}), False),
    ],
    ids=["none", "pages", "LMCache", "layers", "several", "unknown", "not installed", "several not installed"],
)
def test_connectors_that_work_layer_by_layer_are_known_by_what_they_say_of_themselves(
    given: KVTransferConfig | None, moves: bool
) -> None:
    assert moves_layers(given) is moves


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer", "kv_both"])
def test_a_producer_reads_prompts_alone(role: str) -> None:
    assert prefills_only(config("NixlConnector", kv_role=role)) is (role == "kv_producer")
    assert not prefills_only(None)


@pytest.mark.parametrize("method", ["griffin", "slem"])
@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (of_connector("LMCacheConnectorV1"), "LMCacheConnectorV1"),
        (of_connector("LMCacheConnectorV1Dynamic"), "LMCacheConnectorV1"),
        (of_connector("MoRIIOConnector"), "MoRIIOConnector"),
        ({"moves_layers": True}, "layer by layer"),
        (of_connector("MooncakeStoreConnector", policy="recompute"), "recompute"),
        (of_connector("NixlOfSomebodyElse", policy="recompute"), "recompute"),
    ],
    ids=["LMCache", "LMCache's own", "MoRIIO", "layers", "recomputing", "recomputing, of another"],
)
def test_what_has_not_been_tried_is_refused(method: str, asked: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        refuse(method, launch(**asked))


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_nixl_is_not(policy: str) -> None:
    refuse("griffin", launch(**of_connector("NixlConnector", policy)))
    refuse("griffin", launch(**of_connector("LMCacheMPConnector")))


def test_a_hidden_connector_is_there_again_after_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", object())
    seen = []

    @hidden()
    def run() -> None:
        seen.append(has_kv_transfer_group())
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run()
    assert seen == [False]
    assert has_kv_transfer_group()


def test_passes_are_hidden_only_where_there_is_a_connector() -> None:
    assert passes_unseen(SimpleNamespace(kv_transfer_config=None)) is nullcontext  # type: ignore[arg-type]
    assert passes_unseen(SimpleNamespace(kv_transfer_config=object())) is hidden  # type: ignore[arg-type]

"""What we ask of a KV connector before anything is loaded, and when our own passes hide it."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import has_kv_transfer_group, kv_transfer_state

from tests.unit.connectors import of_connector
from tests.unit.test_refusals import launch, refuse
from vllm_specext.engine.kv_connector import hidden, moves_layers, passes_unseen, prefills_only
from vllm_specext.errors import ConfigurationError

LAYERWISE = {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": {"use_layerwise": True}}


def arguments(**config: Any) -> SimpleNamespace:
    return SimpleNamespace(kv_transfer_config=KVTransferConfig(**({"kv_role": "kv_both"} | config)))


@pytest.mark.parametrize(
    ("given", "moves"),
    [
        (SimpleNamespace(kv_transfer_config=None), False),
        (arguments(kv_connector="OffloadingConnector"), False),
        (arguments(kv_connector="LMCacheConnectorV1"), False),
        (arguments(**LAYERWISE), True),
        (
            arguments(
                kv_connector="MultiConnector",
                kv_connector_extra_config={"connectors": [LAYERWISE | {"kv_role": "kv_both"}]},
            ),
            True,
        ),
        (arguments(kv_connector="OfNobody"), False),
        (arguments(kv_connector="Absent", kv_connector_module_path="no.such.module"), False),
    ],
    ids=["none", "pages", "LMCache", "layers", "several", "unknown", "not installed"],
)
def test_connectors_that_work_layer_by_layer_are_known_by_what_they_say_of_themselves(
    given: SimpleNamespace, moves: bool
) -> None:
    assert moves_layers(given) is moves


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (of_connector("LMCacheConnectorV1"), "LMCacheConnectorV1"),
        (of_connector("MultiConnector", connectors=[{"kv_connector": "HF3FSKVConnector"}]), "HF3FSKVConnector"),
        (of_connector("MooncakeStoreConnector", policy="recompute"), "recompute"),
        (of_connector("MultiConnector", "recompute", connectors=[{"kv_connector": "NixlConnector"}]), "recompute"),
    ],
    ids=["LMCache", "among several", "recomputing", "recomputing among several"],
)
@pytest.mark.parametrize("method", ["griffin", "slem"])
def test_connectors_that_take_layers_to_be_alike_or_recompute_are_refused(
    method: str, config: SimpleNamespace, names: str
) -> None:
    with pytest.raises(ConfigurationError, match=names):
        refuse(method, launch(kv_transfer_config=config))


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_nixl_is_not(policy: str) -> None:
    refuse("griffin", launch(kv_transfer_config=of_connector("NixlConnector", policy)))
    refuse("griffin", launch(kv_transfer_config=of_connector("LMCacheMPConnector")))


@pytest.mark.parametrize(("role", "alone"), [("kv_producer", True), ("kv_consumer", False), ("kv_both", False)])
def test_a_producer_reads_prompts_alone(role: str, alone: bool) -> None:
    given = arguments(kv_connector="OffloadingConnector", kv_role=role)
    assert prefills_only(SimpleNamespace(**vars(given), kv_offloading_size=None)) is alone
    assert not prefills_only(SimpleNamespace(**vars(given), kv_offloading_size=4.0))
    assert not prefills_only(SimpleNamespace(kv_transfer_config=None, kv_offloading_size=None))


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

"""The dashboard for Grafana: it is a valid file, and asks for metrics and labels that an engine has."""

import json
import re
from itertools import combinations
from typing import Any

import pytest
from prometheus_client import REGISTRY
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.metrics.loggers import StatLoggerManager
from vllm.v1.metrics.prometheus import unregister_vllm_metrics

from tests.unit.docs_pages import ROOT
from vllm_specext.measure.bundled import GRIFFIN_CHAIN, TARGET

BOARD = json.loads((ROOT / "docs" / "grafana" / "vllm-specext.json").read_text(encoding="utf-8"))
PANELS = BOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel.get("targets", [])]
NAME = re.compile(r"vllm:\w+")
LABELS = re.compile(r"by \(([\w, ]+)\)|\{(\w+)=~")


@pytest.fixture(scope="module")
def registered() -> dict[str, set[str]]:
    """The labels of every metric of an engine with a drafter and of one with SWIFT, by the metric's name."""
    found: dict[str, set[str]] = {}
    for speculative in (GRIFFIN_CHAIN, {"method": "swift"}):
        config = EngineArgs(str(TARGET), max_model_len=256, speculative_config=speculative).create_engine_config()
        StatLoggerManager(config)
        found |= {
            name: set(each._labelnames) for name, each in REGISTRY._names_to_collectors.items() if "vllm:" in name
        }
        unregister_vllm_metrics()
    return found


def test_panels_have_ids_of_their_own_and_do_not_cover_one_another() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    covering = [
        (one["title"], other["title"])
        for one, other in combinations(PANELS, 2)
        if overlap(one["gridPos"], other["gridPos"])
    ]
    assert covering == []
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in PANELS)


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in ("xw", "yh"))


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_metrics_and_labels_that_there_are(query: str, registered: dict[str, set[str]]) -> None:
    names = NAME.findall(query)
    assert names
    assert [name for name in names if name not in registered] == []
    labels = {label for groups in LABELS.findall(query) for label in re.findall(r"\w+", "".join(groups))}
    assert labels <= set[str]().union(*(registered[name] for name in names)) | {"le"}


def test_every_metric_of_ours_is_shown(registered: dict[str, set[str]]) -> None:
    asked = {re.sub("_(sum|count|bucket|total)$", "", name) for query in QUERIES for name in NAME.findall(query)}
    ours = {re.sub("_(sum|count|bucket|total|created)$", "", name) for name in registered if "specext" in name}
    assert len(ours) == 10
    assert ours <= asked


def test_the_choice_of_models_asks_for_a_metric_that_there_is(registered: dict[str, set[str]]) -> None:
    variables: dict[str, Any] = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    (metric, label) = re.findall(r"[\w:]+", variables["model_name"]["query"]["query"].partition("(")[2])
    assert label in registered[metric]
    assert {name for query in QUERIES for name in re.findall(r"\$(\w+)", query)} <= {*variables, "__rate_interval"}

"""The list of released drafters holds together, and the commands of the documents take their drafters from it."""

import json
import re
from itertools import groupby

from scripts.docs_drafters import in_short, released
from scripts.released_drafters import IN_SHORT, RELEASED
from tests.unit.docs_pages import blocks
from vllm_specext.declaration import Reads
from vllm_specext.registry import METHODS

NAME = re.compile(r"[\w-]+/[\w.-]+")
DRAFTERS = {(one.method, drafter) for one in RELEASED for drafter in one.drafters}


def test_names_are_those_of_repositories_and_methods_are_ours() -> None:
    assert [name for one in RELEASED for name in (one.target, *one.drafters) if not NAME.fullmatch(name)] == []
    assert {one.method for one in RELEASED} <= set(METHODS)


def test_no_drafter_stands_there_twice_and_a_targets_rows_stand_together() -> None:
    rows = [(one.target, one.method, drafter) for one in RELEASED for drafter in one.drafters]
    assert len(rows) == len(set(rows))
    # A drafter that reads text alone serves a family of targets.
    own = [drafter for target, method, drafter in rows if METHODS[method].declares.reads is not Reads.TEXT]
    assert len(own) == len(set(own))
    targets = [target for target, _ in groupby(RELEASED, key=lambda one: one.target)]
    assert len(targets) == len(set(targets))


def test_methods_that_need_a_drafter_have_one_and_others_none() -> None:
    """But where some targets have theirs in their own file."""
    fields = {name: method.options.model_fields.get("model") for name, method in METHODS.items()}
    needed = {name: None if field is None else field.is_required() for name, field in fields.items()}
    assert [one for one in RELEASED if needed[one.method] is True and not one.drafters] == []
    assert [one for one in RELEASED if needed[one.method] is None and one.drafters] == []
    assert {bool(one.drafters) for one in RELEASED if needed[one.method] is False} == {True, False}


def test_the_short_table_shows_targets_of_the_long_one() -> None:
    assert set(IN_SHORT) <= {one.target for one in RELEASED}
    assert len(in_short().splitlines()) == 2 + len(IN_SHORT)
    assert len(released().splitlines()) == 2 + len(RELEASED)


def test_drafters_from_the_hub_in_the_documents_commands_are_listed() -> None:
    texts = [block.body for block in blocks("sh", "json")]
    quoted = [json.loads(found) for text in texts for found in re.findall(r"\{\"method\".*?\}", text, re.DOTALL)]
    ours = [config for config in quoted if config["method"] in METHODS and "/" in config.get("model", "")]
    named = {(config["method"], config["model"]) for config in ours if "vllm_specext/" not in config["model"]}
    assert len(named) > 3
    assert named - DRAFTERS == set()

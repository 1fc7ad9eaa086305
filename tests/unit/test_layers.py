"""Imports go one way: no circle between modules, none between folders, and no engine where the documents say so."""

import pytest

from scripts.docs_architecture import READING_PATH, line_of
from scripts.imports import PACKAGE, arrows, between_folders, circles, folder_of, modules, outside

ENGINES = {"vllm", "triton"}
FOREIGN = "methods/foreign_vocab"
FREE_OF_VLLM = (
    "tree", "kernels", "training", "training/data", "training/pipeline", "training/recipes", "training/eagle3",
    "training/block",
    "methods", "methods/swift/search",
    "engine/changes", "remote", "remote/device",
    f"{FOREIGN}/tokenizers", f"{FOREIGN}/text", f"{FOREIGN}/distributions",
)  # fmt: skip
PLAIN = ("model.py", "checkpoint.py")
"""Files of a method that are plain torch."""


def test_no_modules_import_each_other() -> None:
    assert circles({str(module): {str(other) for other in others} for module, others in arrows().items()}) == []


def test_arrows_between_folders_go_one_way() -> None:
    assert circles(between_folders()) == []


@pytest.mark.parametrize("folder", FREE_OF_VLLM)
def test_what_needs_no_engine_imports_none(folder: str) -> None:
    files = [module for module in modules() if folder_of(module) == folder]
    assert files
    allowed = {"triton"} if folder == "kernels" else set()
    assert {
        str(module): outside(module) & ENGINES - allowed for module in files if outside(module) & ENGINES - allowed
    } == {}
    # Nor by way of ours.
    reached = set().union(*(arrows()[module] for module in files))
    assert [str(other) for other in reached if "vllm" in outside(other)] == []


def test_plain_models_and_checkpoints_import_no_vllm() -> None:
    files = [module for module in modules() if module.parts[0] == "methods" and module.name in PLAIN]
    assert len(files) >= 5
    assert [str(module) for module in files if "vllm" in outside(module)] == []


def test_the_engine_imports_no_method_but_what_methods_share() -> None:
    folders = {folder for name, others in between_folders().items() if name.startswith("engine") for folder in others}
    assert {folder for folder in folders if folder.startswith("methods")} <= {"methods"}


def test_the_product_does_not_import_its_demonstration() -> None:
    importing = {name for name, others in between_folders().items() if {"demo", "bench"} & others}
    assert importing <= {"cli", "demo", "bench"}


def test_a_circle_would_be_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]


def test_the_reading_path_is_short_and_its_functions_are_there() -> None:
    files = [file for _, file, _ in READING_PATH]
    assert len(files) == len(set(files))
    assert sum(len((PACKAGE / file).read_text().splitlines()) for file in files) <= 2610
    assert all(line_of(file, name) > 0 for _, file, name in READING_PATH)

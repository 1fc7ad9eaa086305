"""Another vLLM's source is held against the adapter: what it breaks and what it changed inside is found by name."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scripts.record_vllm import DATA
from vllm_specext.cli import app
from vllm_specext.cli.against import compare_sources
from vllm_specext.engine.changes.against.comparison import Adapter, broken, changed_inside, our_adapter
from vllm_specext.engine.changes.against.facts import Facts, installed_facts
from vllm_specext.engine.changes.against.recorded import Recorded, recorded
from vllm_specext.engine.changes.against.tree import open_tree
from vllm_specext.engine.changes.guard import SUPPORTED, installed_vllm
from vllm_specext.errors import ConfigurationError

FOLDER = os.environ.get("VLLM_SPECEXT_TEST_AGAINST")
"""An unpacked wheel of the version that is newest here; without one, tests know what was recorded of it."""
RENEW = "renew it: python -m scripts.record_vllm FOLDER"

BREAKS = {
    # A function has moved, and another leaves its name where it was.
    "model_executor/offloader/base.py": ("def get_offloader(", "def offloader_of_process("),
    "compilation/cudagraph_pool.py": ("def capture_pool(", "def other_pool("),
    # A parameter is added; one is renamed that we give by name.
    "distributed/parallel_state.py": ("def graph_capture(device", "def graph_capture(stream, device"),
    "v1/worker/gpu/block_table.py": ("        max_num_blocks_per_group: ", "        max_blocks: "),
    # A class and an attribute are lost.
    "v1/worker/gpu/spec_decode/rejection_sampler.py": ("class RejectionSampler:", "class Rejection:"),
    "v1/outputs.py": ("    ec_connector_output: ", "    ec_output: "),
    # A kernel has one argument more.
    "v1/worker/gpu/input_batch.py": ("    total_len_ptr,\n", "    total_len_ptr,\n    further_ptr,\n"),
    # The base class takes names of ours: one for a property without a setter, one for a method.
    "v1/worker/gpu/spec_decode/speculator.py": (
        "class DraftModelSpeculator(BaseSpeculator):\n",
        "class DraftModelSpeculator(BaseSpeculator):\n    @property\n    def grower(self):\n        return None\n\n"
        "    def draft(self):\n        return None\n\n",
    ),
    # Another body, and another docstring.
    "v1/core/sched/scheduler.py": ("    def _free_blocks(self, request: Request):\n", None),
    "config/vllm.py": ("    def num_lookahead_tokens(self) -> int:\n", '        """Another text."""\n'),
}


@pytest.fixture(scope="module")
def adapter() -> Adapter:
    return our_adapter()


@pytest.fixture(scope="module")
def installed() -> Facts:
    facts = installed_facts()
    assert facts is not None
    return facts


@pytest.fixture(scope="module")
def broken_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed vLLM with the ``BREAKS``, all files that stay as links."""
    import importlib.util

    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    copy = tmp_path_factory.mktemp("against") / "vllm"
    for file in package.rglob("*.py"):
        link = copy / file.relative_to(package)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    for name, (old, new) in BREAKS.items():
        file = copy / name
        text = file.read_text()
        assert text.count(old) >= 1, name
        file.unlink()
        if new is None:
            new = f"{old}        request.is_looked_at = True\n"
        elif name == "config/vllm.py":
            start = text.index('"""', text.index(old))
            end = text.index('"""', start + 3) + 3
            file.write_text(text[:start] + new.strip() + text[end:])
            continue
        file.write_text(text.replace(old, new, 1))
    with (copy / "compilation" / "cudagraph_pool.py").open("a") as moved_from:
        moved_from.write("from vllm.compilation.pools import capture_pool\n")
    (copy / "compilation" / "pools.py").write_text("def capture_pool(pool, vllm_config):\n    return pool\n")
    return copy.parent


@pytest.fixture(scope="module")
def found(adapter: Adapter, broken_folder: Path, installed: Facts) -> dict[str, str]:
    return {each.path: each.what for each in broken(adapter, Facts(open_tree(broken_folder)), installed)}


def test_the_installed_vllm_breaks_nothing(adapter: Adapter, installed: Facts) -> None:
    report = compare_sources(adapter, installed, installed)
    assert (report.broken, report.changed_inside) == ([], [])
    assert report.checked["signatures"] > 80
    assert report.checked["names"] > 140
    assert report.checked["kernels"] > 40


def test_a_function_that_moved_is_found_by_its_import_and_its_signature(found: dict[str, str]) -> None:
    assert found["vllm.model_executor.offloader.base:get_offloader"] == "it is missing"
    assert found["vllm.model_executor.offloader.base.get_offloader"] == "it is missing"


def test_a_function_that_left_its_name_is_followed(found: dict[str, str]) -> None:
    assert not [path for path in found if "capture_pool" in path]


def test_another_parameter_is_found(found: dict[str, str]) -> None:
    assert found["vllm.distributed.parallel_state:graph_capture"] == "it takes (stream device), not (device)"


def test_a_call_with_a_lost_keyword_is_found(found: dict[str, str]) -> None:
    assert found["vllm.v1.worker.gpu.block_table.BlockTables"] == "it does not take max_num_blocks_per_group"


def test_a_lost_class_is_found_with_what_we_take_of_it(found: dict[str, str]) -> None:
    lost = "vllm.v1.worker.gpu.spec_decode.rejection_sampler"
    assert found[f"{lost}.RejectionSampler"] == "it is missing"
    assert found[f"{lost}:RejectionSampler._verify"] == "it is missing"


def test_a_lost_attribute_that_we_set_is_found(found: dict[str, str]) -> None:
    assert found["vllm.v1.outputs.ModelRunnerOutput.ec_connector_output"] == "it is missing"


def test_a_kernel_with_another_argument_is_found(found: dict[str, str]) -> None:
    assert "total_len_ptr further_ptr" in found["vllm.v1.worker.gpu.input_batch._post_update_kernel"]


def test_names_that_a_base_class_takes_from_ours_are_found(found: dict[str, str]) -> None:
    ours = {path.rpartition(".")[2]: what for path, what in found.items() if "Speculator." in path}
    assert ours["grower"].endswith("sets it, and it is a property without a setter")
    assert ours["draft"].startswith("it is new, and")


def test_nothing_else_is_found(found: dict[str, str]) -> None:
    expected = ("get_offloader", "graph_capture", "BlockTables", "RejectionSampler", "ec_connector_output", "_kernel")
    rest = [path for path in found if not any(name in path for name in (*expected, ".grower", ".draft"))]
    assert rest == []


def test_a_changed_body_is_a_note_and_a_changed_docstring_is_none(
    adapter: Adapter, broken_folder: Path, installed: Facts
) -> None:
    notes = {each.path for each in changed_inside(adapter, Facts(open_tree(broken_folder)), installed)}
    assert "vllm.v1.core.sched.scheduler:Scheduler._free_blocks" in notes
    assert "vllm.config.vllm.VllmConfig.num_lookahead_tokens" not in notes
    assert len(notes) < 6


def test_the_command_lists_what_is_broken_and_has_status_1(broken_folder: Path) -> None:
    shown = CliRunner().invoke(app, ["doctor", "--against", str(broken_folder)])
    assert shown.exit_code == 1
    assert "vllm.distributed.parallel_state:graph_capture: it takes (stream device)" in " ".join(shown.output.split())


def test_the_command_lists_it_as_json_too(tmp_path: Path) -> None:
    (tmp_path / "vllm" / "config").mkdir(parents=True)
    for name, text in SMALL.items():
        (tmp_path / "vllm" / name).write_text(text)
    shown = CliRunner().invoke(app, ["doctor", "--json", "--against", str(tmp_path / "vllm")])
    assert shown.exit_code == 1
    report = json.loads(shown.output)
    assert len(report["broken"]) > 8
    assert (report["vllm"], report["installed"]) == ("9.9", installed_vllm())


SMALL = {"__init__.py": "", "config/__init__.py": "class VllmConfig: ...", "_version.py": "__version__ = '9.9'"}
"""A vLLM that lacks nearly everything."""


def test_a_wheel_file_is_read_as_its_folder_is(tmp_path: Path, adapter: Adapter) -> None:
    wheel = tmp_path / "vllm-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name, text in SMALL.items():
            file.writestr(f"vllm/{name}", text)
    facts = Facts(open_tree(wheel))
    assert facts.version == "9.9"
    missing = {each.path for each in broken(adapter, facts)}
    assert "vllm.config.SpeculativeConfig" in missing
    assert "vllm.config.VllmConfig" not in missing


@pytest.mark.parametrize("name", ["nothing", "empty", "text.whl"])
def test_what_is_no_vllm_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.whl").write_text("no wheel")
    with pytest.raises(ConfigurationError, match=rf"^--against is '.*{name}', which .*\.$"):
        open_tree(tmp_path / name)


def test_nothing_of_the_other_vllm_is_run(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from vllm_specext.cli.against import compare
compare(Path({str(tmp_path)!r}))
print(sorted({{"torch", "vllm"}} & set(sys.modules)))
"""
    for name in ("__init__.py", "config/__init__.py"):
        file = tmp_path / "vllm" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("raise SystemExit('run')\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# The versions that we work with, as they were recorded.


@pytest.mark.parametrize("minor", SUPPORTED)
def test_what_was_recorded_is_what_the_adapter_asks_for(adapter: Adapter, minor: str) -> None:
    file = DATA / f"vllm-{minor}.json"
    assert Recorded(file).paths == adapter.asked(), f"{file.name} is out of date; {RENEW}"


@pytest.mark.parametrize("minor", SUPPORTED)
def test_a_version_that_we_work_with_breaks_nothing(adapter: Adapter, minor: str) -> None:
    before, now = Recorded(DATA / "vllm-0.32.json"), Recorded(DATA / f"vllm-{minor}.json")
    report = compare_sources(adapter, now, before)
    assert report.broken == []
    assert report.supported


def test_the_adapter_of_0_32_alone_is_told_what_0_33_moved(adapter: Adapter) -> None:
    """The list before the adapter was changed: without what it knows of both versions."""
    caches = "vllm.v1.core.kv_cache"
    moved = (f"{caches}_planning:get_kv_cache_groups", f"{caches}_planning:get_kv_cache_config_from_groups")
    sample = "vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator.sample_draft"
    known = dict(adapter.signatures)
    old = {path.replace("_planning", "_utils"): known.pop(path) for path in moved}
    old[sample] = known[sample].replace(" [num_steps]", "")
    before = broken(replace(adapter, signatures=known | old), Recorded(DATA / "vllm-0.33.json"))
    assert {each.path for each in before} == set(old)
    installed_before = broken(replace(adapter, signatures=known | old), Recorded(DATA / "vllm-0.32.json"))
    assert installed_before == []


def test_what_was_recorded_of_the_installed_vllm_is_what_it_has(adapter: Adapter, installed: Facts) -> None:
    file = DATA / f"vllm-{'.'.join(installed.version.split('.')[:2])}.json"
    kept, now = Recorded(file), json.loads(recorded(adapter, installed))["names"]
    assert json.loads(file.read_text())["names"] == now, f"{file.name}: {kept.version}, {installed.version}; {RENEW}"


@pytest.mark.skipif(FOLDER is None, reason="VLLM_SPECEXT_TEST_AGAINST names no unpacked wheel")
def test_what_was_recorded_is_what_the_wheel_has(adapter: Adapter) -> None:
    facts = Facts(open_tree(Path(str(FOLDER))))
    file = DATA / f"vllm-{'.'.join(facts.version.split('.')[:2])}.json"
    assert json.loads(recorded(adapter, facts)) == json.loads(file.read_text()), RENEW

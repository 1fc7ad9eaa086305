"""In which order files of tests run, which of them share a worker where several run, and what all workers do."""

import os
from collections.abc import Iterable

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.forks import fork_at, where_to_fork
from vllm_specext.engine.changes.wrapping import when_loaded
from vllm_specext.measure.arguments import on_gpu
from vllm_specext.measure.inspection import look_here

SERVERS = "servers of tests/e2e/conftest.py"
SHARED = {
    f"tests/e2e/test_{name}.py": SERVERS
    for name in ("bench", "inert", "openai_client", "operation", "requests", "served_drafter")
}
"""Files that use the same servers, each of which is started once in a worker."""

PROCESSOR_SECONDS = {
    "tests/e2e/test_bench.py": 130,
    "tests/e2e/test_forty_bad_inputs.py": 110,
    "tests/e2e/test_openai_client.py": 200,
    "tests/e2e/test_operation.py": 10,
    "tests/e2e/test_predictions.py": 60,
    "tests/e2e/test_remote_drafting.py": 90,
    "tests/e2e/test_served_drafter.py": 50,
    "tests/e2e/test_soak.py": 250,
    "tests/e2e/test_train_command.py": 150,
    "tests/engine/test_adaptive_drafts.py": 50,
    "tests/engine/test_assistants.py": 80,
    "tests/engine/test_at_once.py": 45,
    "tests/engine/test_axes.py": 40,
    "tests/engine/test_bad_weights.py": 40,
    "tests/engine/test_calibrated_trees.py": 95,
    "tests/engine/test_capture.py": 50,
    "tests/engine/test_capture_targets.py": 50,
    "tests/engine/test_client_drafts.py": 110,
    "tests/engine/test_dflash.py": 45,
    "tests/engine/test_dflash_drafting.py": 15,
    "tests/engine/test_draft_model_tree.py": 45,
    "tests/engine/test_draft_vocabulary.py": 45,
    "tests/engine/test_dspark.py": 50,
    "tests/engine/test_eagle.py": 25,
    "tests/engine/test_eagle_formats.py": 10,
    "tests/engine/test_eagle_graphs.py": 20,
    "tests/engine/test_expert_modules.py": 60,
    "tests/engine/test_float8_weights.py": 45,
    "tests/engine/test_foreign.py": 150,
    "tests/engine/test_given.py": 110,
    "tests/engine/test_greedy.py": 50,
    "tests/engine/test_hybrid.py": 95,
    "tests/engine/test_hybrid_prefixes.py": 80,
    "tests/engine/test_mamba_hybrid.py": 80,
    "tests/engine/test_latent.py": 70,
    "tests/engine/test_latent_drafters.py": 30,
    "tests/engine/test_lora.py": 30,
    "tests/engine/test_lossless.py": 60,
    "tests/engine/test_moa.py": 90,
    "tests/engine/test_moa_drafting.py": 15,
    "tests/engine/test_mtp_tree.py": 40,
    "tests/engine/test_multimodal.py": 25,
    "tests/engine/test_prefixes_apart.py": 35,
    "tests/engine/test_preparation.py": 10,
    "tests/engine/test_prompt_embeds.py": 45,
    "tests/engine/test_quantised_drafters.py": 20,
    "tests/engine/test_quantised_targets.py": 30,
    "tests/engine/test_qwen_modules.py": 70,
    "tests/engine/test_recorded.py": 100,
    "tests/engine/test_sessions.py": 55,
    "tests/engine/test_swift.py": 40,
    "tests/engine/test_trees.py": 90,
    "tests/engine/test_weight_changes.py": 60,
    "tests/engine/test_windows.py": 55,
    "tests/kernels/test_attention_compilation.py": 60,
    "tests/kernels/test_compilation.py": 55,
    "tests/kernels/test_recurrent_compilation.py": 60,
    "tests/kernels/test_cpu_bodies.py": 150,
    "tests/kernels/test_relaunch.py": 50,
    "tests/kernels/test_token_guided_fusion_kernels.py": 40,
    "tests/unit/test_against.py": 35,
    "tests/unit/test_calibration.py": 35,
    "tests/unit/test_docs.py": 50,
    "tests/unit/test_draft_choice.py": 40,
    "tests/unit/test_forks.py": 40,
    "tests/unit/test_gpu_suite_correctness.py": 40,
    "tests/unit/test_shared_training.py": 40,
    "tests/unit/test_torch_index.py": 50,
    "tests/unit/test_train_command.py": 40,
    "tests/unit/test_training_resume.py": 35,
}
"""What takes longest comes first, so that the workers end together. Rough figures do; without one, a file counts 1."""


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def unit_of(nodeid: str) -> str:
    """What is to run in one worker: a file, or the files of ``SHARED``."""
    return SHARED.get(file_of(nodeid), file_of(nodeid))


def longest_first(nodeids: Iterable[str]) -> list[str]:
    """The units of these tests."""
    files = {file_of(nodeid) for nodeid in nodeids}
    seconds: dict[str, int] = {}
    for file in sorted(files):
        seconds[unit_of(file)] = seconds.get(unit_of(file), 0) + PROCESSOR_SECONDS.get(file, 1)
    return sorted(seconds, key=lambda unit: -seconds[unit])


BEFORE = dict(os.environ)
CHANGED: dict[str, str] = {}
"""What the import of the tests has changed in the environment of vLLM, which servers under test inherit."""


def pytest_collection_finish() -> None:
    now = {name: value for name, value in os.environ.items() if name.startswith("VLLM_")}
    CHANGED.update({name: value for name, value in now.items() if BEFORE.get(name) != value})


@pytest.hookimpl(trylast=True)  # after pytest has put together the tests that share a parameter
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {unit: place for place, unit in enumerate(longest_first(item.nodeid for item in items))}
    items.sort(key=lambda item: places[unit_of(item.nodeid)])


class Units(LoadScopeScheduling):
    """A worker gets the next unit when it has done its own, in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Units | None:
    """Files go to workers, unless another way than xdist's usual one is asked for."""
    if config.option.dist != "load":
        return None
    config.option.loadscopereorder = False  # xdist would begin with what has the most tests
    return Units(config, log)


def pytest_configure_node(node: WorkerController) -> None:
    """One process imports vLLM for the forks of all workers."""
    node.workerinput["forks"] = where_to_fork()


def pytest_configure(config: pytest.Config) -> None:
    if not on_gpu():  # where a test's own process imports vLLM, a model's class is looked at there, too
        when_loaded("vllm.model_executor.models.registry", lambda _: look_here())
    fork_at(getattr(config, "workerinput", {}).get("forks"))

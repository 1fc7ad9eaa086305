"""Processes that find vLLM imported: their environment, output and end are their own."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vllm_specext.measure import forks
from vllm_specext.measure.forks import Fork

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="for CPUs: nothing is forked beside a GPU")
SECONDS = 120


def fork(folder: Path, function: str, *arguments: object, **environment: str) -> Fork:
    streams = folder / "out", folder / "err"
    return Fork(
        f"{__name__}:{function}",
        arguments,
        environment=os.environ | environment,
        stdout=streams[0],
        stderr=streams[1],
        folder=folder,
    )


def say(status: int) -> None:
    imported, leads = "vllm.v1.engine.llm_engine" in sys.modules, os.getsid(0) == os.getpid()
    print(os.environ["ONLY_HERE"], imported, Path.cwd().name, leads)
    print("to standard error", file=sys.stderr)
    sys.exit(status)


def test_a_fork_has_vllm_imported_and_its_own_environment_folder_session_and_end(tmp_path: Path) -> None:
    assert fork(tmp_path, "say", 3, ONLY_HERE="yes").wait(SECONDS) == 3
    assert (tmp_path / "out").read_text() == f"yes True {tmp_path.name} True\n"
    assert (tmp_path / "err").read_text() == "to standard error\n"
    assert "ONLY_HERE" not in os.environ


def test_beside_a_gpu_the_process_is_a_fresh_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "on_gpu", lambda: True)
    assert fork(tmp_path, "say", 0, ONLY_HERE="yes").wait(SECONDS) == 0
    assert (tmp_path / "out").read_text() == f"yes False {tmp_path.name} True\n"


def sleep() -> None:
    import time

    time.sleep(10 * SECONDS)


def test_a_fork_that_goes_on_can_be_waited_for_and_ended(tmp_path: Path) -> None:
    going_on = fork(tmp_path, "sleep")
    with pytest.raises(subprocess.TimeoutExpired):
        going_on.wait(0.2)
    assert going_on.poll() is None
    going_on.terminate()
    assert going_on.wait(SECONDS) == going_on.returncode == -15


SERVING = f"""
import sys, time
from pathlib import Path
from vllm_specext.cli.endings import end_servers_with_this
from vllm_specext.measure.server import Server
from {__name__} import fork

end_servers_with_this()
folder = Path(sys.argv[1])
with Server(folder / "log", forked=True) as server:
    server.process = fork(folder, "sleep")
    print(server.process.pid, flush=True)
    time.sleep({SECONDS})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.extended)])
def test_a_signal_to_all_processes_of_a_command_ends_its_servers(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", SERVING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as serving:
        assert serving.stdout is not None
        server = int(serving.stdout.readline())
        os.killpg(serving.pid, number)
        assert serving.wait(SECONDS) == 128 + number
        with pytest.raises(ProcessLookupError):
            os.kill(server, 0)


def start_worker() -> None:
    """As vLLM starts one on a CPU: by "spawn", with the number of threads in the environment."""
    forks.find_all_imported()
    context = multiprocessing.get_context("spawn")
    os.environ["OMP_NUM_THREADS"] = "2"
    worker = context.Process(target=tell_threads)
    worker.start()
    worker.join()


def tell_threads() -> None:
    print("vllm.v1.worker.cpu_worker" in sys.modules, torch.get_num_threads())


def test_a_server_s_workers_find_all_imported_and_have_the_threads_that_they_are_given(tmp_path: Path) -> None:
    assert fork(tmp_path, "start_worker", OMP_NUM_THREADS="1").wait(SECONDS) == 0, (tmp_path / "err").read_text()
    assert (tmp_path / "out").read_text() == "True 2\n"


def look_at_a_model() -> None:
    from vllm.model_executor.models import registry

    registry.subprocess = None
    print(registry.ModelRegistry.models["GPT2LMHeadModel"].inspect_model_cls().is_text_generation_model)


def test_a_fork_looks_at_a_model_s_class_itself(tmp_path: Path) -> None:
    """vLLM alone has a process import all once more, unless the machine has seen the class before."""
    assert fork(tmp_path, "look_at_a_model", VLLM_CACHE_ROOT=str(tmp_path)).wait(SECONDS) == 0
    assert (tmp_path / "out").read_text().endswith("True\n")
    assert list((tmp_path / "modelinfos").iterdir())

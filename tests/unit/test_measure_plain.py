"""Plain decoding by vLLM as it is: where it has a row, and that the row's process has none of our kernels."""

import os
from pathlib import Path

import pytest

from tests import forks
from vllm_specext.cpu_runner import eager_layers
from vllm_specext.kernels.native import library
from vllm_specext.measure import plain
from vllm_specext.measure.plain import STOCK_ENVIRONMENT, has_stock_row


def test_the_rows_environment_switches_off_all_that_plain_decoding_gets(tmp_path: Path) -> None:
    assert {eager_layers.VARIABLE: eager_layers.STOCK, library.SWITCH: "0"} == STOCK_ENVIRONMENT
    program = (
        "import vllm.v1.worker.cpu.shm; "
        "from vllm_specext.plugin import register; register(); "
        "from vllm.v1.worker.gpu.sample.sampler import Sampler; "
        "from vllm_specext.cpu_runner.eager_layers import are_wanted; "
        "from vllm_specext.kernels.native.library import library; "
        "print(are_wanted(), library() is not None, hasattr(Sampler.sample, '__wrapped__'))"
    )

    def said(environment: dict[str, str]) -> str:
        own = {key: value for key, value in os.environ.items() if key not in STOCK_ENVIRONMENT}
        return forks.run_code(program, tmp_path, own | environment)

    assert said(STOCK_ENVIRONMENT) == "False False False"
    if plain.has_stock_row():
        layers, _, sampler = said({}).split()
        assert (layers, sampler) == ("True", "True")


@pytest.mark.parametrize("gpu", [True, False])
def test_a_gpu_has_one_row_of_plain_decoding(monkeypatch: pytest.MonkeyPatch, gpu: bool) -> None:
    monkeypatch.setattr(plain, "on_gpu", lambda: gpu)
    assert has_stock_row() is not gpu

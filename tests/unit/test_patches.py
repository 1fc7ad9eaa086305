"""What is replaced in vLLM is in the catalogue, once, and only errors of ours are shortened."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError, model_validator

from vllm_specext.engine.catalogue import CATALOGUE
from vllm_specext.engine.patches import _excepthook
from vllm_specext.errors import ConfigurationError
from vllm_specext.registry import METHODS


def test_every_entry_says_what_why_how_and_until_when() -> None:
    for patch in CATALOGUE:
        assert all(vars(patch).values()), patch.name
    assert len({patch.target for patch in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize("target", [patch.target for patch in CATALOGUE])
def test_every_target_exists_in_the_installed_vllm(target: str) -> None:
    module, names = target, []
    while True:
        try:
            owner = import_module(module)
            break
        except ImportError:
            module, _, name = module.rpartition(".")
            names.insert(0, name)
    for name in names:
        owner = getattr(owner, name)


def test_installing_twice_wraps_once() -> None:
    from vllm.config import SchedulerConfig, VllmConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import SamplingParams

    from vllm_specext.engine.patches import install

    def replaced() -> list[Callable]:
        return [
            EngineArgs.create_speculative_config,
            SchedulerConfig.get_scheduler_cls,
            SamplingParams._validate_spec_decode,
            VllmConfig.use_v2_model_runner.fget,
            VllmConfig.num_lookahead_tokens.fget,
        ]

    install()
    first = [*replaced(), sys.excepthook]
    install()
    assert first == [*replaced(), sys.excepthook]
    assert all(hasattr(function, "__wrapped__") for function in replaced())
    assert not any(hasattr(function.__wrapped__, "__wrapped__") for function in replaced())


def test_a_runner_that_was_loaded_before_the_plug_in_makes_our_speculators(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm.v1.worker.cpu.shm  # noqa: F401 - on a CPU it has to come before the V2 runner
    import vllm.v1.worker.gpu.model_runner as runner
    import vllm.v1.worker.gpu.spec_decode as spec_decode

    from vllm_specext.engine.patches import install

    install()
    monkeypatch.setattr(runner, "init_speculator", inspect.unwrap(spec_decode.init_speculator))
    install()
    assert hasattr(runner.init_speculator, "__wrapped__")


def test_a_program_may_load_its_plug_ins_before_it_parses_arguments() -> None:
    program = """
import sys
from vllm_specext.plugin import register

register()
register()
assert "vllm.engine.arg_utils" not in sys.modules
from vllm.engine.arg_utils import EngineArgs

assert hasattr(EngineArgs.create_speculative_config, "__wrapped__")
assert not any(type(finder).__module__.startswith("vllm_specext") for finder in sys.meta_path)
register()
assert not hasattr(EngineArgs.create_speculative_config.__wrapped__, "__wrapped__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_asynchronous_scheduling_is_open_to_our_methods_and_to_those_it_was_open_to() -> None:
    import vllm.config.speculative as speculative
    import vllm.config.vllm as config

    from vllm_specext.engine.patches import install

    install()
    assert set(get_args(config.EagleModelTypes)) == {*get_args(speculative.EagleModelTypes), *METHODS}


def test_a_configuration_error_is_shown_as_one_line_and_other_errors_as_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    passed_on = []
    hook = _excepthook(lambda *error: passed_on.append(error[0]))
    hook(ConfigurationError, ConfigurationError("key 'x' is 1, but 2 is allowed."), None)
    hook(KeyError, KeyError("x"), None)
    assert capsys.readouterr().err == "error: key 'x' is 1, but 2 is allowed.\n"
    assert passed_on == [KeyError]


def test_a_configuration_error_from_within_a_configuration_is_shown_as_one_line_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Configuration(BaseModel):
        @model_validator(mode="after")
        def check(self) -> "Configuration":
            raise ConfigurationError("key 'x' is 1, but 2 is allowed.")

    with pytest.raises(ValidationError) as raised:
        Configuration()
    passed_on = []
    hook = _excepthook(lambda *error: passed_on.append(error[1]))
    hook(ValidationError, raised.value, None)
    assert capsys.readouterr().err == "error: key 'x' is 1, but 2 is allowed.\n"
    with pytest.raises(ValidationError) as others:
        TypeAdapter(int).validate_python("x")
    hook(ValidationError, others.value, None)
    assert passed_on == [others.value]

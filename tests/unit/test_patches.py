"""What is replaced in vLLM is in the catalogue, once, and only errors of ours are shortened."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError, model_validator

from vllm_specext.engine.changes.catalogue import catalogue, present
from vllm_specext.engine.changes.replacements import Kind, Replacement
from vllm_specext.engine.hooks.error_display import _excepthook
from vllm_specext.errors import ConfigurationError
from vllm_specext.registry import RUNNABLE


def test_every_entry_says_what_why_how_and_until_when() -> None:
    for patch in catalogue():
        assert all((patch.name, patch.target, patch.why, patch.how, patch.upstream, patch.until)), patch.name
    assert (
        len({patch.target for patch in catalogue()}) == len({patch.name for patch in catalogue()}) == len(catalogue())
    )


@pytest.mark.parametrize("patch", catalogue(), ids=lambda patch: patch.target)
def test_every_target_exists_in_the_installed_vllm(patch: Replacement) -> None:
    assert present(patch)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_target_that_vllm_no_longer_has_is_missed(kind: Kind) -> None:
    entry = next(entry for entry in catalogue() if entry.kind == kind)
    owner, _, attribute = entry.target.rpartition(".")
    assert not present(replace(entry, target=f"{owner}_not.{attribute}"))
    assert present(replace(entry, target=f"{owner}.no_such_thing")) == (kind == "added")
    assert not present(replace(entry, target="vllm.no_such_module.thing"))
    assert kind == "added" or not present(replace(entry, also=(f"{owner}.no_such_thing",)))


def test_installing_twice_wraps_once() -> None:
    from vllm.config import SchedulerConfig, VllmConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import SamplingParams

    from vllm_specext.engine.hooks.patches import install

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

    from vllm_specext.engine.hooks.patches import install

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
assert "vllm.engine.arg_utils" not in {getattr(finder, "module", None) for finder in sys.meta_path}
register()
assert not hasattr(EngineArgs.create_speculative_config.__wrapped__, "__wrapped__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_asynchronous_scheduling_is_open_to_our_methods_and_to_those_it_was_open_to() -> None:
    import vllm.config.speculative as speculative
    import vllm.config.vllm as config

    from vllm_specext.engine.hooks.patches import install

    install()
    assert set(get_args(config.EagleModelTypes)) == {*get_args(speculative.EagleModelTypes), *RUNNABLE}


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

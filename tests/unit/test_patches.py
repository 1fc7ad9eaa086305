"""What is replaced in vLLM is in the catalogue, once, and only errors of ours are shortened."""

import sys
from importlib import import_module

import pytest

from vllm_specext.engine.patches import CATALOGUE, _excepthook
from vllm_specext.errors import ConfigurationError


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


def test_installing_twice_wraps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm.engine.arg_utils as arguments

    from vllm_specext.engine.patches import install

    install()
    first = (arguments.EngineArgs.create_speculative_config, sys.excepthook)
    install()
    assert first == (arguments.EngineArgs.create_speculative_config, sys.excepthook)
    assert hasattr(first[0], "__wrapped__")


def test_a_configuration_error_is_shown_as_one_line_and_other_errors_as_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    passed_on = []
    hook = _excepthook(lambda *error: passed_on.append(error[0]))
    hook(ConfigurationError, ConfigurationError("key 'x' is 1, but 2 is allowed."), None)
    hook(KeyError, KeyError("x"), None)
    assert capsys.readouterr().err == "error: key 'x' is 1, but 2 is allowed.\n"
    assert passed_on == [KeyError]

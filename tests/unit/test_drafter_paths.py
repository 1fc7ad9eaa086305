"""Paths that vLLM takes for drafters of another method."""

import pytest

from vllm_specext.drafter_paths import TOLD, refuse_misread
from vllm_specext.errors import ConfigurationError


@pytest.mark.parametrize("path", ["/runs/EAGLE3-vs-mtp/drafter", "/runs/eagle-eye", "a/dflash_runs", "me/my-dspark"])
def test_a_path_with_the_name_of_another_method_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--output is .*: with '(eagle3|eagle-|dflash|dspark)' in its path"):
        refuse_misread("--output", path, "mtp")
    for method in TOLD:
        refuse_misread("--output", path, method)


def test_others_are_not() -> None:
    refuse_misread("--output", "/runs/eagles/mtp", "mtp")

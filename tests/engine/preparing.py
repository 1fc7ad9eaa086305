"""Prepare training data with an engine that answers and captures, in a process of its own: ``main(SPEC, OUT)``.

``SPEC``: ``llm`` (arguments of ``capturing_llm``), ``settings`` (of the data), ``sampling``, ``folder``. ``OUT``: the
figures of the data, and the keys of rows without features. A second preparation goes to ``again``, with nobody to ask.
"""

import json
from pathlib import Path
from typing import Any


class Nobody:
    def exchange(self, turns: Any) -> Any:
        raise AssertionError("asked again")

    abandon: Any = exchange
    write: Any = exchange


def main(spec_path: str, out_path: str) -> None:
    # Here, because it sets the environment of an engine's process, and tests import this module.
    from tests.engine.runner import replace_in_vllm

    spec = json.loads(Path(spec_path).read_text())
    replace_in_vllm({})
    from vllm_specext.preparation.answers import CapturingAnswerer
    from vllm_specext.preparation.engine import capturing_llm
    from vllm_specext.preparation.feature_folder import FeatureFolder
    from vllm_specext.training.data.prepare import prepare
    from vllm_specext.training.data.settings import data_settings
    from vllm_specext.training.data.template import load_template
    from vllm_specext.training.fingerprint import fingerprint

    target, folder = spec["llm"]["target"], Path(spec["folder"])
    values = spec["settings"] | {"data": tuple(spec["settings"]["data"])}
    settings, template = data_settings(**values), load_template(target)
    answerer = CapturingAnswerer(capturing_llm(**spec["llm"]), spec["sampling"])
    out = {}
    for name, capturing in (("data", answerer), ("again", Nobody())):
        features = FeatureFolder(capturing, folder / "features", fingerprint(Path(target)), "test")
        stats = prepare(settings, template, folder / name, features, features.keep)
        out[name] = {"stats": stats, "missing": features.missing}
    Path(out_path).write_text(json.dumps(out))

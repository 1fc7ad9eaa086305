"""Settings and folders of runs, for tests of ``training/pipeline``."""

import json
from pathlib import Path
from typing import Any

from vllm_specext.measure.bundled import TARGET
from vllm_specext.training.pipeline.settings import RunSettings
from vllm_specext.training.recipes.values import checked

CHATS = [{"messages": [{"role": "user", "content": f"What is {n} and {n}?"}]} for n in range(4)]


def chats(folder: Path, rows: Any = CHATS) -> Path:
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def settings(**changes: Any) -> RunSettings:
    values = {"method": "griffin", "target": str(TARGET), "data": ["nowhere.jsonl"], "max_length": 160}
    return checked(RunSettings, {**values, **changes}, "the setting")

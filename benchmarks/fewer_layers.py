"""A smaller model with the same tokenizer: a Llama without some of its layers.

It stands for the small member of a family where none is bundled. It was trained for nothing, so that what it drafts
says nothing of real pairs; the mechanics are the same.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file


def write_without_layers(target: Path, kept: Sequence[int], folder: Path) -> None:
    """Write the model in ``target`` to ``folder`` with the layers ``kept`` alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in target.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, folder)
    place = {str(old): str(new) for new, old in enumerate(kept)}
    tensors = {}
    for name, tensor in load_file(target / "model.safetensors").items():
        parts = name.split(".")
        if parts[1] == "layers":
            if parts[2] not in place:
                continue
            parts[2] = place[parts[2]]
        tensors[".".join(parts)] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text()) | {"num_hidden_layers": len(kept)}
    (folder / "config.json").write_text(json.dumps(config))

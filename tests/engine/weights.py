"""Weights that are loaded while an engine serves, and a sleep in which an engine loses what vLLM does not keep.

A change is ``{"before": round, "of": "target" | "drafter", "how": ..., "model": folder}``. ``how`` is one of ``reload``
(vLLM's ``reload_weights``), ``trainer`` (vLLM's weight transfer, in ``at_once`` tensors a message) and ``sleep`` (of
level 2, ``sleeping.py``; the target is loaded anew afterwards).
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

BACKEND = "files"


def changed(source: Path, folder: Path, noise: float, seed: int = 1, **config: Any) -> None:
    """A model like that in ``source``, each weight off by that share of its own, ``noise``."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    settings = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(settings))
    tensors = load_file(folder / "model.safetensors")
    if settings.get("tie_word_embeddings") is False and "model.embed_tokens.weight" in tensors:
        tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"].clone())
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            off = 1 + noise * torch.randn(tensor.shape, generator=generator)
            tensors[name] = (tensor.float() * off).to(tensor.dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def register_transfer() -> None:
    """vLLM's weight transfer, with files in place of a connection to a trainer."""
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    class Files(WeightTransferEngine):
        init_info_cls, update_info_cls = Nothing, Tensors

        def init_transfer_engine(self, init_info: Any) -> None:
            """There is no connection."""

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def receive_weights(self, update_info: Any) -> None:
            tensors = load_file(update_info.file)
            with disable_mtp_completeness_check():  # as vLLM's own
                self.model.load_weights([(name, tensors[name]) for name in update_info.names])

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            """There is no connection."""

    WeightTransferEngineFactory.register_engine(BACKEND, Files)


@dataclass
class Nothing:
    pass


@dataclass
class Tensors:
    file: str
    names: list[str]


def prepare(changes: list[dict[str, Any]]) -> None:
    """Have an engine take them."""
    from tests.engine import sleeping

    if changes:
        register_transfer()
    if any(change["how"] == "sleep" for change in changes):
        sleeping.note_what_is_allocated()


def change_before(place: int, changes: list[dict[str, Any]], llm: Any, runner: Any) -> None:
    for change in changes:
        if change["before"] == place:
            _make(change, llm, runner)
            llm.reset_prefix_cache()


def _make(change: dict[str, Any], llm: Any, runner: Any) -> None:
    model = Path(change["model"])
    if change["how"] == "trainer":
        return _transfer(llm, model / "model.safetensors", change)
    if change["how"] == "sleep":
        from tests.engine.sleeping import allocator

        assert bool(allocator.sleep([runner.model, runner.speculator.model])) == change.get("loses", False)
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(model)})
    return None


def _transfer(llm: Any, file: Path, change: dict[str, Any]) -> None:
    names = list(load_file(file))
    (llm.start_draft_weight_update if change["of"] == "drafter" else llm.start_weight_update)()
    step = change.get("at_once", len(names))
    for first in range(0, len(names), step):
        llm.update_weights({"update_info": {"file": str(file), "names": names[first : first + step]}})
    llm.finish_weight_update()

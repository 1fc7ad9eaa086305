"""What is captured of targets whose layers are not the bundled one's is what transformers computes of the same tokens:
sliding windows, recurrent layers, latent attention, and targets that see."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from benchmarks.mimo import make_mimo
from tests.engine import latent
from tests.engine.hybrid import make_hybrid
from tests.engine.mamba_hybrid import make_falcon, make_granite, make_nemotron
from tests.engine.test_architectures import make, save_random
from tests.engine.test_capture import captured, fed, furthest, furthest_of_layers, known, rows_in
from tests.engine.test_qwen_modules import ALL_BUT_EYES
from tests.engine.windows import gpt_oss
from vllm_specext.training.pipeline.target import read_target
from vllm_specext.training.pipeline.target_ends import TargetEnds

CLOSE = 1e-3


@dataclass(frozen=True)
class Kind:
    """A small target of random weights: how it is made in a folder, the layers whose inputs are kept, where vLLM gives
    them, and arguments for an engine."""

    make: Callable[[Path], Path]
    layers: list[int] | None
    tight: dict[str, Any] | None = None
    """What makes requests wait for room."""
    llm: dict[str, Any] = field(default_factory=dict)


def deepseek(folder: Path) -> Path:
    """Of one layer more than others with latent attention have here, and without a module."""
    torch.manual_seed(0)
    return save_random(transformers.AutoModelForCausalLM.from_config(latent.FAMILIES["deepseek"][0](4, 1)), folder)


FEW_BLOCKS = {"num_gpu_blocks_override": 44}
TIGHT = FEW_BLOCKS | {"max_num_batched_tokens": 48}
KINDS = {
    "gemma3": Kind(lambda folder: make("Gemma3", folder), None),  # all layers have windows: no request waits for room
    "gemma4": Kind(lambda folder: make("Gemma4", folder), [1, 2, 3], TIGHT),
    "gpt-oss": Kind(gpt_oss, [1, 2, 3], TIGHT),
    "qwen3-next": Kind(lambda folder: make_hybrid(folder)[0], [2, 6, 9], TIGHT),
    "qwen3.5": Kind(lambda folder: make_hybrid(folder, sees=True)[0], [2, 6, 9], TIGHT, ALL_BUT_EYES),
    "granite": Kind(lambda folder: make_granite(folder)[0], None, TIGHT),
    "nemotron": Kind(make_nemotron, [1, 3, 5], TIGHT),
    "falcon": Kind(make_falcon, None, TIGHT | {"num_gpu_blocks_override": 30}),
    # vLLM reads prompts of such targets in one piece on a CPU.
    "deepseek": Kind(deepseek, [1, 2, 3], FEW_BLOCKS, latent.LLM),
}


def of_transformers(folder: Path, **keys: Any) -> Any:
    """The part of a target that reads text, with other ``keys`` than its configuration has."""
    config = transformers.AutoConfig.from_pretrained(folder)
    sees = hasattr(config, "vision_config")
    known_as = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    model = known_as.from_pretrained(folder, dtype=torch.float32, **keys)
    return model.model.language_model if sees else model


FOR_ALL = {"qwen3.5", "deepseek"}
"""Those that are tried where few tests are."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FOR_ALL else pytest.mark.extended) for name in KINDS]
)
def test_states_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    states_are_those_of_transformers(KINDS[name], tmp_path)


@pytest.mark.extended
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.tight])
def test_they_are_where_prompts_come_in_pieces_and_requests_wait_for_room(name: str, tmp_path: Path) -> None:
    states_are_those_of_transformers(KINDS[name], tmp_path, tight=True)


def states_are_those_of_transformers(kind: Kind, tmp_path: Path, tight: bool = False) -> None:
    (tmp_path / "target").mkdir()
    target = kind.make(tmp_path / "target")
    llm = kind.llm | {"target": str(target), "aux_layers": kind.layers} | ((kind.tight or {}) if tight else {})
    result = captured(tmp_path, llm, torchvision=True, keep_async=True)
    assert (result["preemptions"] > 0) == tight
    assert result["missing"] == []
    rows = rows_in(tmp_path)
    assert {tuple(row.token_ids.tolist()): known(row) for row in rows} == fed(result)
    reference = of_transformers(target)
    assert furthest(reference, rows) < CLOSE
    assert kind.layers is None or furthest_of_layers(reference, rows, kind.layers) < CLOSE


def test_windows_matter(tmp_path: Path) -> None:
    """Otherwise the rows above would be too short to tell."""
    (tmp_path / "target").mkdir()
    target = make("Gemma3", tmp_path / "target")
    captured(tmp_path, {"target": str(target)})
    assert furthest(of_transformers(target, sliding_window=1024), rows_in(tmp_path)) > 100 * CLOSE


@torch.no_grad()
def test_what_is_learnt_of_a_target_that_norms_with_its_head_is_its_own_distribution(tmp_path: Path) -> None:
    """vLLM's class of MiMo gives its last hidden state before the last norm."""
    (tmp_path / "target").mkdir()
    target = make_mimo(tmp_path / "target")
    captured(tmp_path, {"target": str(target)})
    ends, reference = TargetEnds(read_target(str(target), weights=True)), of_transformers(target)
    distances: dict[bool, list[float]] = {True: [], False: []}
    for row in rows_in(tmp_path):
        own = reference(row.token_ids[None].long()).logits[0, : known(row)].softmax(dim=-1)
        for normed, logits in ((True, ends.logits), (False, replace(ends.logits, norm=None))):
            learnt = logits.of(row.features[: known(row)].float(), ends.head).softmax(dim=-1)
            distances[normed].append(float((learnt - own).abs().sum(dim=-1).max()) / 2)
    assert max(distances[True]) < 0.01
    assert min(distances[False]) > 0.1

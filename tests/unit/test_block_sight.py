"""What the layers of a block drafter see, and how its embeddings and logits are scaled, in all ways of saying it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vllm.model_executor.models import qwen3_dflash

from tests.unit.eagle_folders import Config, write
from tests.unit.test_dflash_layouts import (
    BLOCK,
    DSPARK,
    DSPARK_OF_SPECULATORS,
    LAYERS,
    RELEASED,
    SPECULATORS,
    dflash,
    markov,
)
from tests.unit.tiny_dflash import tiny_dflash, tiny_dspark
from tests.unit.tiny_llama import tiny_llama
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.block.scales import Scales, scale, scales_of
from vllm_specext.methods.block.sight import sights_of
from vllm_specext.methods.stock.config import Drafter, read_drafter
from vllm_specext.options.stock import DFlashTreeOptions, DSparkTreeOptions
from vllm_specext.training.block import layouts
from vllm_specext.training.block.checkpoint import configuration

WINDOW = 16
MIXED: Config = {
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": WINDOW,
    "use_sliding_window": True,
}
EVERYWHERE = MIXED | {"layer_types": ["sliding_attention"] * LAYERS}


def of_zlab(top: Config, **section: Any) -> Config:
    return RELEASED | top | {"dflash_config": RELEASED["dflash_config"] | section}


def of_speculators(layers: Config, like: Config = SPECULATORS, **top: Any) -> Config:
    return like | top | {"transformer_layer_config": like["transformer_layer_config"] | layers}


WHOLE, EARLIER = (None, False), (None, True)
"""All of the text, and all of a block or its earlier rows."""
SAID: dict[str, tuple[Config, list[tuple[int | None, bool]]]] = {
    "nothing": (of_zlab({}), [WHOLE, WHOLE]),
    "causal": (of_zlab({}, causal=True), [EARLIER, EARLIER]),
    "causal at the top": (of_zlab({"is_causal": True}), [EARLIER, EARLIER]),
    "mixed": (of_zlab(MIXED), [WHOLE, (WINDOW, True)]),
    "mixed, not causal": (of_zlab(MIXED, causal=False), [WHOLE, (WINDOW, False)]),
    "MiMo": (of_zlab({}, use_swa=True, swa_window_size=32), [(32, False)] * LAYERS),
    "MiMo, the window at the top": (of_zlab(EVERYWHERE, use_swa=True, causal=False), [(WINDOW, False)] * LAYERS),
    "DeepSeek": (DSPARK | MIXED, [WHOLE, (WINDOW, True)]),
    "older speculators": (of_speculators(MIXED), [WHOLE, (WINDOW, False)]),
    "speculators": (of_speculators(EVERYWHERE, sliding_window_non_causal=False), [(WINDOW, True)] * LAYERS),
    "speculators, not causal": (of_speculators(EVERYWHERE, sliding_window_non_causal=True), [(WINDOW, False)] * LAYERS),
    "speculators, mixed": (of_speculators(MIXED, sliding_window_non_causal=False), [WHOLE, (WINDOW, True)]),
    "speculators, no window": (of_speculators({}, sliding_window_non_causal=False), [WHOLE, WHOLE]),
    "DSpark of speculators, mixed": (of_speculators(MIXED, DSPARK_OF_SPECULATORS), [WHOLE, (WINDOW, True)]),
    "DSpark of speculators, not causal": (
        of_speculators(MIXED, DSPARK_OF_SPECULATORS, sliding_window_non_causal=True),
        [WHOLE, (WINDOW, False)],
    ),
}
VLLM_DIFFERS = ("speculators, mixed", "speculators, no window", "DSpark of speculators, not causal")
"""vLLM's class takes one layer for causal that is not, or reads no key."""


def drafter(folder: Path, config: Config) -> Drafter:
    is_dspark = "markov_rank" in config
    folder = write(folder, config, dflash() | (markov() if is_dspark else {}))
    options = (DSparkTreeOptions if is_dspark else DFlashTreeOptions)(model=str(folder))
    return read_drafter(folder, options, trust_remote_code=False)


@pytest.mark.parametrize("name", SAID)
def test_every_way_of_saying_it_is_understood(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, expected = SAID[name]
    read = drafter(tmp_path, config)
    sights = sights_of(read, BLOCK)
    assert [(sight.window, sight.is_causal) for sight in sights] == expected

    now = SimpleNamespace(use_v2_model_runner=True)
    monkeypatch.setattr(qwen3_dflash, "get_current_vllm_config", lambda: now)
    vllms = [qwen3_dflash._resolve_layer_attention(read.config, layer) for layer in range(LAYERS)]
    assert [window for window, _ in vllms] == [window for window, _ in expected]
    assert (vllms != expected) is (name in VLLM_DIFFERS)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (of_zlab({}, use_swa=True), ["sliding_window is None", f"above block_size = {BLOCK}"]),
        (of_zlab({}, use_swa=True, swa_window_size=BLOCK), ["dflash_config.swa_window_size is 8", "above"]),
        (of_zlab({}, use_swa="yes"), ["dflash_config.use_swa is 'yes'", "true or false"]),
        (of_zlab(MIXED | {"sliding_window": None}), ["sliding_window is None"]),
        (of_zlab({"layer_types": ["full_attention", "chunked_attention"]}), ["layer_types is", "each of 2 layers"]),
        (of_speculators(MIXED, sliding_window_non_causal="no"), ["sliding_window_non_causal is 'no'"]),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(config: Config, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        sights_of(drafter(tmp_path, config), BLOCK)
    for word in words:
        assert word in str(raised.value)


def test_scales_are_found_in_the_section_and_at_the_top(tmp_path: Path) -> None:
    config = of_zlab({"final_logit_softcapping": 30.0}, input_embedding_scale=8, output_multiplier=0.5)
    assert scales_of(drafter(tmp_path, config)) == Scales(8, 0.5, 30, reads_as_target=True)


def test_speculators_drafters_read_the_embedding_as_it_is(tmp_path: Path) -> None:
    assert scales_of(drafter(tmp_path, SPECULATORS)) == Scales()


@pytest.mark.parametrize("layout", [layouts.DFLASH, layouts.DSPARK], ids=lambda layout: layout.title)
def test_embeddings_are_served_as_they_were_trained_with(layout: layouts.Layout, tmp_path: Path) -> None:
    made = (tiny_dflash if layout is layouts.DFLASH else tiny_dspark)(tiny_llama(6))
    assert scales_of(drafter(tmp_path, configuration(made.shape))).reads_as_target == layout.embeds_as_target


def test_dsparks_drafters_have_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"final_logit_softcapping is 30\.0; it is supported for .* DFlash"):
        scales_of(drafter(tmp_path, DSPARK | {"final_logit_softcapping": 30.0}))


class Processor:
    """Logits as vLLM's processor makes them: capped first, multiplied afterwards."""

    def __init__(self, scale: float) -> None:
        self.scale: float = scale
        self.soft_cap: float | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits * self.scale


@pytest.mark.parametrize(
    ("normalizer", "is_shared", "scales", "factor"),
    [
        (None, True, Scales(reads_as_target=True), 1),
        (4.0, True, Scales(reads_as_target=True), 4),
        (4.0, True, Scales(), 1),
        (4.0, False, Scales(reads_as_target=True), 1),
        (4.0, True, Scales(3, reads_as_target=True), 12),
        (None, False, Scales(3, 0.5, 2.0), 3),
    ],
)
def test_a_drafter_is_scaled_and_its_target_is_not(
    normalizer: float | None, is_shared: bool, scales: Scales, factor: float
) -> None:
    embedding = nn.Embedding(5, 3)
    inner: Any = SimpleNamespace(embed_tokens=embedding)
    if normalizer is not None:
        inner.normalizer = torch.tensor(normalizer)
    own = embedding if is_shared else nn.Embedding(5, 3)
    model = SimpleNamespace(model=SimpleNamespace(embed_tokens=own), logits_processor=Processor(1.0))
    scale(model, SimpleNamespace(model=inner), scales)
    ids, logits = torch.arange(5), torch.linspace(-4, 4, 9)
    assert torch.equal(model.model.embed_tokens(ids), own(ids) * factor)
    assert inner.embed_tokens is embedding
    wanted, cap = logits * scales.output_multiplier, scales.final_logit_softcapping
    if cap is not None:
        wanted = torch.tanh(wanted / cap) * cap
    torch.testing.assert_close(model.logits_processor(logits), wanted)

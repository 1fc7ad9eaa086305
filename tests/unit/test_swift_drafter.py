"""The target as its own drafter: the target's modules, without the sub-layers that are skipped."""

import pytest
import torch
from torch import Tensor, nn

from vllm_specext.methods.swift.drafter import SelfDrafter
from vllm_specext.methods.swift.search.skip_set import SkipSet

LAYERS, WIDTH, VOCABULARY = 5, 8, 11


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        mixed: Tensor = self.proj(hidden_states.cumsum(0)) + positions[:, None]
        return mixed


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.self_attn, self.mlp = Attention(), nn.Linear(WIDTH, WIDTH)


class Target(nn.Module):
    """A small model with the names of vLLM's Llama."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.model.norm = nn.LayerNorm(WIDTH)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)

    def embed_input_ids(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(ids)
        return embedded

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.embedding.weight.T

    def run(self, ids: Tensor, positions: Tensor, parts: list[tuple[int, str]]) -> Tensor:
        """Only these sub-layers, written out."""
        hidden = self.embedding(ids)
        for place, kind in parts:
            layer: Layer = self.model.layers[place]  # type: ignore[assignment]
            if kind == "attention":
                hidden = hidden + layer.self_attn(positions, layer.input_layernorm(hidden))
            else:
                hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return self.compute_logits(self.model.norm(hidden))


@pytest.mark.parametrize(
    ("attention", "mlp"),
    [((), ()), ((2,), ()), ((), (1, 3)), ((1, 3), (3,)), ((1, 2, 3), (1, 2, 3))],
    ids=["nothing", "an attention", "two MLPs", "both", "all that may be"],
)
def test_what_is_left_out_is_the_identity_and_all_else_runs(attention: tuple[int, ...], mlp: tuple[int, ...]) -> None:
    target = Target()
    drafter = SelfDrafter(target, SkipSet(LAYERS, attention, mlp))
    ids, positions = torch.tensor([3, 1, 4, 1]), torch.arange(4)
    skipped = {(place, "attention") for place in attention} | {(place, "mlp") for place in mlp}
    parts = [(place, kind) for place in range(LAYERS) for kind in ("attention", "mlp") if (place, kind) not in skipped]
    assert torch.equal(drafter.compute_logits(drafter(ids, positions)), target.run(ids, positions, parts))


def test_it_has_no_weights_of_its_own() -> None:
    target = Target()
    drafter = SelfDrafter(target, SkipSet.uniform(LAYERS))
    assert {id(parameter) for parameter in drafter.parameters()} == {id(parameter) for parameter in target.parameters()}


def test_another_set_gives_another_draft() -> None:
    drafter = SelfDrafter(Target(), SkipSet.uniform(LAYERS))
    ids, positions = torch.tensor([3, 1]), torch.arange(2)
    before = drafter(ids, positions)
    drafter.skipped = SkipSet(LAYERS, (2,), (2,))
    assert not torch.equal(drafter(ids, positions), before)

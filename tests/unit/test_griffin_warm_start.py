"""A drafter that training begins with drafts what the file's drafter drafts, and learns from the first step on."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.unit.eagle_reference import EPS, HEADS, MLP, THETA, VOCABULARY, D, Tensors, eagle_pass, random_eagle
from tests.unit.test_griffin_from_eagle import write
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin.checkpoint import EMBEDDING, write_checkpoint
from vllm_specext.training.griffin.train import new_griffin_drafter
from vllm_specext.training.griffin.warm_start import DOWN, UP, warm_griffin_drafter

LENGTH = 9


def target(vocabulary: int = VOCABULARY, width: int = D) -> LlamaForCausalLM:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def eagle(folder: Path, model: LlamaForCausalLM) -> tuple[Path, Tensors]:
    tensors = random_eagle(fc_bias=True) | {EMBEDDING: model.get_input_embeddings().weight.detach().clone()}
    return write(folder, {name: x.float().contiguous() for name, x in tensors.items()}), tensors


@pytest.mark.parametrize("tgf_size", [None, 3 * D])
def test_an_eagle_drafter_drafts_the_same_before_the_first_step(tgf_size: int | None, tmp_path: Path) -> None:
    model = target()
    folder, tensors = eagle(tmp_path, model)
    drafter = warm_griffin_drafter(model, folder, tgf_size=tgf_size)
    assert drafter.shape.tgf_size == (tgf_size or MLP)
    tokens, features = torch.randint(VOCABULARY, (LENGTH,)), torch.randn(LENGTH, D)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[None, None]
    predict, regress, _ = drafter(tokens[None], features[None], torch.arange(LENGTH)[None], mask)
    wanted = eagle_pass({name: x.float() for name, x in tensors.items()}, tokens, features)
    torch.testing.assert_close(predict[0], wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(regress, predict, rtol=0, atol=0)


def test_the_fusion_learns_from_the_first_step_and_what_it_expands_with_from_the_second(tmp_path: Path) -> None:
    model = target()
    drafter = warm_griffin_drafter(model, eagle(tmp_path, model)[0])
    optimizer = torch.optim.SGD([p for p in drafter.parameters() if p.requires_grad], lr=0.1)
    tokens, features = torch.randint(VOCABULARY, (1, LENGTH)), torch.randn(1, LENGTH, D)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[None, None]
    parameters = dict(drafter.named_parameters())
    gradients = []
    for _ in range(2):
        optimizer.zero_grad()
        predict, _, _ = drafter(tokens, features, torch.arange(LENGTH)[None], mask)
        predict.square().sum().backward()
        gradients.append([float(parameters[name].grad.abs().max()) for name in (DOWN, UP)])  # type: ignore[union-attr]
        optimizer.step()
    (down, up), (_, later) = gradients
    assert down > 0
    assert up == 0
    assert later > 0
    assert parameters[EMBEDDING].grad is None


def test_a_griffin_drafter_goes_on_as_it_is(tmp_path: Path) -> None:
    model = target()
    before = new_griffin_drafter(model, mlp_size=24, heads=2, kv_heads=1, head_dim=8, seed=5)
    write_checkpoint(tmp_path, before.shape, before.state_dict(), torch.float32)
    after = warm_griffin_drafter(model, tmp_path, tgf_size=7)
    assert after.shape == before.shape
    for name, tensor in before.state_dict().items():
        assert torch.equal(after.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("other", "said"), [({"vocabulary": 2 * VOCABULARY}, "tokens in its vocabulary"), ({"width": 2 * D}, "hidden size")]
)
def test_a_drafter_of_another_target_is_refused(other: dict[str, int], said: str, tmp_path: Path) -> None:
    folder, _ = eagle(tmp_path, target())
    with pytest.raises(ConfigurationError, match=said):
        warm_griffin_drafter(target(**other), folder)


def test_a_file_without_a_tensor_is_refused_by_its_name(tmp_path: Path) -> None:
    folder, tensors = eagle(tmp_path, target())
    del tensors["fc.weight"]
    save_file({name: x.float().contiguous() for name, x in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(ConfigurationError, match=r"fc\.fc\.weight|fc\.weight"):
        warm_griffin_drafter(target(), folder)

"""Further training of multi-token prediction modules: passes and simulated chains against drafting step by step, and
files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.engine.modules import OF_QWEN, Module
from tests.unit.tiny_modules import ENDS, MIMO, MOE, NEXT, QWEN, VOCABULARY, WEIGHTS, WIDTH, change, target_in
from vllm_specext.errors import ConfigurationError
from vllm_specext.training.mtp.checkpoint import to_files
from vllm_specext.training.mtp.experts import DOWN, GATE_UP
from vllm_specext.training.mtp.model import MtpModule
from vllm_specext.training.mtp.passes import training_passes
from vllm_specext.training.packed_attention import Layout
from vllm_specext.training.pipeline.chained import ChainedDrafter
from vllm_specext.training.pipeline.mtp import MtpMethod
from vllm_specext.training.pipeline.target import TargetModel, read_target
from vllm_specext.training.recipes.mtp import MtpRecipe

CPU = torch.device("cpu")
LENGTH = 9
METHOD = MtpMethod()
KINDS = {"MiMo": MIMO, "Qwen3.5": QWEN, "Qwen3-Next": NEXT, "Qwen3.5 with experts": MOE}


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return target_in(tmp_path / "target", KINDS[request.param])


@pytest.fixture
def target(folder: Path) -> TargetModel:
    return read_target(str(folder), weights=True)


def begin(target: TargetModel, init: Path | None = None) -> ChainedDrafter:
    made = METHOD.begin(target, MtpRecipe(), init, CPU)
    assert isinstance(made, ChainedDrafter)
    made.model.requires_grad_(False)
    return made


def draft(model: MtpModule, embeddings: Tensor, states: Tensor, position: int, steps: int) -> Tensor:
    """Output ``[d]`` of the last of ``steps`` steps, of which the last reads input ``position`` and the first the
    target's states up to ``position - steps + 1``: one input at a time, with a cache."""
    past, made = None, None
    states, first_own = states.clone(), position - steps + 2
    for s in range(position + 1):
        if s >= first_own:
            assert made is not None
            states[:, s] = made[:, 0]
        place = torch.tensor([[s]])
        fused = model.fuse(states[:, s : s + 1], embeddings[:, s : s + 1], place)
        heads, past = model.self_attn(fused, place, torch.ones(1, 1, 1, s + 1).bool(), past)
        made = model.finish(fused, heads)
    assert made is not None
    return made[0, 0]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_pass_is_a_step_of_drafting_at_every_position(target: TargetModel, steps: int) -> None:
    model = begin(target).model
    torch.manual_seed(2)
    embeddings, states = torch.randn(1, LENGTH, WIDTH), torch.randn(1, LENGTH, WIDTH)
    made = list(training_passes(model, embeddings, states, Layout.of([[LENGTH]]), 3))
    for position in range(steps, LENGTH):
        step = draft(model, embeddings, states, position, steps)
        torch.testing.assert_close(made[steps - 1][0, position], step, rtol=1e-4, atol=1e-5)
        if steps > 1:
            assert not torch.allclose(made[0][0, position], step, rtol=1e-2)


def test_a_simulated_chain_is_drafting_step_by_step(target: TargetModel) -> None:
    drafter = begin(target)
    torch.manual_seed(2)
    ids, states = torch.randint(0, VOCABULARY, (1, LENGTH)), torch.randn(1, LENGTH, WIDTH)
    chains = drafter.draft(ids, states, 4)
    for start in range(LENGTH):
        known = ids[:, : start + 1]
        for depth in range(4):
            # Of the positions after the start the module reads its own features, whatever is given here.
            given = torch.cat((states[:, : start + 1], torch.full((1, depth, WIDTH), 9.0)), dim=1)
            output = draft(drafter.model, drafter.embedding[known], given, start + depth, depth + 1)
            token = int((output @ drafter.head.T).argmax())
            assert token == int(chains[0, start, depth])
            known = torch.cat((known, torch.tensor([[token]])), dim=1)
    assert len({tuple(chain) for chain in chains[0].tolist()}) > LENGTH // 2


def test_the_first_embedding_is_read_where_the_layout_says_so(target: TargetModel) -> None:
    model = begin(target).model
    states, embeddings, places = torch.randn(1, 2, WIDTH), torch.randn(1, 2, WIDTH), torch.arange(2)[None]
    same = model.fuse(states, embeddings, places) == model.fuse(states, embeddings + 1, places)
    assert [bool(each.all()) for each in same[0]] == [not model.shape.layout.sees_first_token, False]


@pytest.mark.parametrize("config", [QWEN, NEXT, MOE], ids=["Qwen3.5", "Qwen3-Next", "Qwen3.5 with experts"])
def test_qwens_module_is_that_of_transformers(config: dict[str, Any], tmp_path: Path) -> None:
    """With heads that are turned in part, gates, norms that multiply by one more than their weights, and experts."""
    folder = target_in(tmp_path / "target", config)
    drafter = begin(read_target(str(folder), weights=True))
    torch.manual_seed(2)
    ids, states = torch.randint(0, VOCABULARY, (1, LENGTH)), torch.randn(1, LENGTH, WIDTH)
    places = torch.arange(LENGTH)[None]
    mask = (places <= places.T)[None, None]
    with torch.no_grad():
        wanted, _, _ = Module(folder, OF_QWEN)(ids, states, places, mask, None)
    (made,) = training_passes(drafter.model, drafter.embedding[ids], states, Layout.of([[LENGTH]]), 1)
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)


def test_a_module_is_written_by_the_names_that_it_was_read_by(target: TargetModel, folder: Path) -> None:
    model, there = begin(target).model, load_file(folder / WEIGHTS)
    written = to_files(model.state_dict(), model.shape)
    assert there.keys() - written.keys() == ENDS.keys()
    for name, tensor in written.items():
        torch.testing.assert_close(tensor, there[name])


def test_what_is_exported_drafts_the_same_and_has_the_targets_configuration(
    target: TargetModel, folder: Path, tmp_path: Path
) -> None:
    place = target.folder / "config.json"
    own = json.loads(place.read_text())
    place.write_text(json.dumps(own | {"dtype": "float16"}))
    drafter = begin(target)
    for weight in drafter.model.parameters():
        weight.data = weight.data.bfloat16().float()
    METHOD.export(drafter.model, tmp_path / "module")
    torch.manual_seed(2)
    ids, states = torch.randint(0, VOCABULARY, (1, LENGTH)), torch.randn(1, LENGTH, WIDTH)
    METHOD.check_init(tmp_path / "module", target)
    METHOD.check_init(folder, target)  # a whole model has one, too
    assert torch.equal(begin(target, folder).draft(ids, states, 3), begin(target).draft(ids, states, 3))
    for again in (METHOD.load(tmp_path / "module", target, CPU), begin(target, tmp_path / "module")):
        torch.testing.assert_close(again.draft(ids, states, 3), drafter.draft(ids, states, 3))
    config = json.loads((tmp_path / "module" / "config.json").read_text())
    assert config == own | {"torch_dtype": "bfloat16"}


def test_as_many_numbers_are_trained_as_planned(target: TargetModel) -> None:
    trained = sum(p.numel() for p in begin(target).model.parameters())
    assert METHOD.sizes(target, MtpRecipe()).trained == trained
    once, thrice = (METHOD.operations(target, MtpRecipe(passes=passes))[0] for passes in (1, 3))
    head, idle = VOCABULARY * WIDTH, 2 * 3 * 24 * WIDTH if "num_experts" in target.config else 0
    assert thrice - once == 2 * (6 * (trained - idle) + 4 * 0.5 * head)  # of the half that is learnt


def test_a_mimos_distribution_is_that_of_normed_states(target: TargetModel) -> None:
    """vLLM's class of MiMo gives, and its module reads, states before the last norm."""
    drafter, weights = begin(target), load_file(target.folder / WEIGHTS)
    torch.manual_seed(2)
    states = torch.randn(3, WIDTH)
    normed = torch.nn.functional.rms_norm(states, (WIDTH,), weights["model.norm.weight"], 1e-5)
    is_mimo = target.config["model_type"] == "qwen2"
    torch.testing.assert_close(
        drafter.logits.of(states, drafter.head), (normed if is_mimo else states) @ drafter.head.T
    )


@pytest.mark.parametrize("config", [NEXT, MOE], ids=["Qwen3-Next", "Qwen3.5"])
def test_experts_are_read_and_written_together_or_apart(config: dict[str, Any], tmp_path: Path) -> None:
    folder = target_in(tmp_path / "target", config)
    apart = begin(read_target(str(folder), weights=True))
    METHOD.export(apart.model, tmp_path / "apart")
    model = apart.model
    assert isinstance(model, MtpModule)
    assert model.shape.experts is not None
    assert not model.shape.experts.together
    own = {name: tensor for name, tensor in load_file(folder / WEIGHTS).items() if ".experts." in name}
    change(folder, dict.fromkeys(own))
    change(folder, {f"mtp.layers.0.{name}": model.state_dict()[name] for name in (GATE_UP, DOWN)})
    target = read_target(str(folder), weights=True)
    METHOD.check_new(target, complete=True)
    together = begin(target)
    METHOD.export(together.model, tmp_path / "together")
    names = [load_file(tmp_path / form / WEIGHTS).keys() for form in ("apart", "together")]
    assert f"mtp.layers.0.{GATE_UP}" in names[1]
    assert names[0] - names[1] == own.keys()
    for init in ("apart", "together"):  # whichever way the target's own has them
        METHOD.check_init(tmp_path / init, target)
        again = begin(target, tmp_path / init).model.state_dict()
        for name in (GATE_UP, DOWN):
            assert torch.equal(again[name], model.state_dict()[name].bfloat16().float())


NORM, FC = "mtp.norm.weight", "mtp.fc.weight"


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({NORM: None}, "it lacks tensor mtp.norm.weight"),
        ({"mtp.layers.0.mlp.gate.weight": torch.zeros(2)}, "has the unexpected tensor mtp.layers.0.mlp.gate.weight"),
        ({FC: torch.zeros(WIDTH, WIDTH)}, r"tensor mtp.fc.weight has shape \[32, 32\]; expected \[32, 64\]"),
        ({FC: torch.zeros(WIDTH, 2 * WIDTH, dtype=torch.int8)}, "mtp.fc.weight does not hold floating-point numbers"),
    ],
)
def test_a_module_that_is_another_one_is_refused(
    tensors: dict[str, Tensor | None], expected: str, tmp_path: Path
) -> None:
    folder = target_in(tmp_path / "target", QWEN)
    change(folder, tensors)
    target = read_target(str(folder), weights=True)
    with pytest.raises(ConfigurationError, match=expected):
        METHOD.check_new(target, complete=True)
    with pytest.raises(ConfigurationError, match=expected):
        METHOD.check_init(folder, target)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architectures": ["Glm4MoeForCausalLM"]}, "'Glm4MoeForCausalLM'; modules are trained of MiMoForCausalLM,"),
        ({"architectures": None}, "of the architecture None"),
        ({"num_nextn_predict_layers": 2}, "whose num_nextn_predict_layers is 2; one module is trained"),
        ({"auto_map": {"AutoConfig": "a.B"}}, "whose config.json has auto_map: it names code, which is not run"),
        ({"quantization_config": {"quant_method": "fp8"}}, "whose config.json has quantization_config: modules are"),
        ({"compression_config": {"format": "pack"}}, "whose config.json has compression_config: modules are trained"),
        ({"partial_rotary_factor": 2.0}, r"partial_rotary_factor is 2.0; expected a number above 0 and at most 1"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'; expected a positive number"),
        ({"hidden_act": "gelu"}, "whose hidden_act is 'gelu'; expected 'silu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "has the type 'yarn'"),
    ],
)
def test_a_target_whose_module_is_not_trained_here_is_refused(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    folder = target_in(tmp_path / "target", MIMO)
    (folder / "config.json").write_text(json.dumps(MIMO | changes))
    with pytest.raises(ConfigurationError, match=expected):
        METHOD.sizes(read_target(str(folder)), MtpRecipe())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2 .* has no experts in its module"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers \[0\], so that vLLM's class has no experts"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5, but there are 4 experts"),
        ({"num_experts": "four"}, "is not a configuration that transformers reads"),
    ],
)
def test_experts_that_cannot_be_are_refused(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    folder = target_in(tmp_path / "target", NEXT)
    (folder / "config.json").write_text(json.dumps(NEXT | changes))
    with pytest.raises(ConfigurationError, match=expected):
        METHOD.sizes(read_target(str(folder)), MtpRecipe())


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    folder = target_in(tmp_path / "target", QWEN)
    change(folder, {NORM: torch.full((WIDTH,), torch.nan)})
    with pytest.raises(ConfigurationError, match=r"mtp.norm.weight holds NaN or an infinity"):
        begin(read_target(str(folder), weights=True))


def test_a_target_without_its_module_is_refused_unless_another_is_given(folder: Path, tmp_path: Path) -> None:
    target = read_target(str(folder), weights=True)
    METHOD.export(begin(target).model, tmp_path / "module")
    METHOD.check_new(target, complete=True)
    names = load_file(folder / WEIGHTS).keys()
    change(folder, {name: None for name in names if name not in ENDS})
    with pytest.raises(ConfigurationError, match=r"was saved without its multi-token prediction module .*; --init"):
        METHOD.check_new(target, complete=True)
    with pytest.raises(ConfigurationError, match="has no multi-token prediction module: no name of its tensors"):
        METHOD.check_init(folder, target)
    METHOD.check_init(tmp_path / "module", target)
    begin(target, tmp_path / "module")

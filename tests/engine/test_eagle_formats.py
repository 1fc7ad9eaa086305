"""EAGLE drafters in the layouts of SafeAILab, SpecForge and speculators on the real engine: made from the bundled
drafters, so that how many drafts are accepted is known beforehand. No released checkpoint is here."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from tests.engine.conftest import ROOMY, Engines, Result, of_method
from tests.engine.test_lossless import differing
from tests.engine.workload import EAGLE3, GREEDY, GRIFFIN, TARGET
from vllm_specext.cli import app
from vllm_specext.served_drafter import served_keys

VOCABULARY, WIDTH, WIDER = 2048, 256, 320
AUX = "eagle_aux_hidden_state_layer_ids"
Tensors = dict[str, Tensor]
Config = dict[str, Any]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Engines that have all requests before the first step, so that the same drafter always drafts the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        yield Engines(tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def plain(engines: Callable[..., Result]) -> Result:
    return engines({})


def bundled() -> tuple[Config, Tensors]:
    """Without the keys that name its target."""
    config = json.loads((EAGLE3 / "config.json").read_text())
    own = served_keys("eagle3-tree", "target")
    return {key: config[key] for key in config.keys() - own.keys()}, load_file(EAGLE3 / "model.safetensors")


def head() -> Tensor:
    """The target's output layer, which is its embedding."""
    return load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"].half()


def write(folder: Path, config: Config, tensors: Tensors, is_bin: bool = False) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if is_bin:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def draft(engines: Engines, model: Path, method: str = "eagle3-tree") -> Result:
    """As published, so that what is accepted says of the checkpoint alone how good it is."""
    return engines(of_method(method, model, 24, 4, calibrated_trees=False))


def accepted(result: Result) -> int:
    return int(result["counters"]["vllm:spec_decode_num_accepted_tokens"])


def safeailab(folder: Path, said: Counter[int]) -> Path:
    """``.bin``, the layer's other name, a vocabulary of its own, and fewer positions than the context has."""
    config, tensors = bundled()
    own = torch.tensor(sorted({token for token, _ in said.most_common(700)} | set(range(0, VOCABULARY, 8))))
    renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    renamed["lm_head.weight"] = head()[own]
    renamed["d2t"] = own - torch.arange(len(own))
    renamed["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, own, True)
    config |= {"draft_vocab_size": len(own), "max_position_embeddings": ROOMY["max_model_len"] // 2}
    return write(folder, config | {"architectures": ["LlamaForCausalLMEagle3"]}, renamed, is_bin=True)


def specforge(folder: Path) -> Path:
    """The target's layers nested, and numbered by their outputs."""
    config, tensors = bundled()
    renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    nested = {"eagle_config": {AUX: [1, 5, 8], "use_aux_hidden_state": True}, "draft_vocab_size": VOCABULARY}
    config |= nested | {"architectures": ["LlamaForCausalLMEagle3"]}
    return write(folder, config, renamed | {"lm_head.weight": head()})


def speculators(folder: Path, layer: Config | None = None, more: Tensors | None = None, **keys: Any) -> Path:
    """The drafter's layer nested, and the target's embedding repeated."""
    config, tensors = bundled()
    config.pop("architectures")
    outer = {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": VOCABULARY,
        "norm_before_residual": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": str(TARGET)},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "transformer_layer_config": config | (layer or {}),
    }
    tensors |= {"embed_tokens.weight": head(), "lm_head.weight": head()} | (more or {})
    return write(folder, outer | keys, tensors)


def deepspec(folder: Path, norms: Tensors, **keys: Any) -> Path:
    """Qwen3's layer, copies of the target's embedding and output layer, and its layers numbered by their outputs."""
    config, tensors = bundled()
    config.pop(AUX, None)
    config |= {"architectures": ["Qwen3Eagle3Model"], "model_type": "qwen3", "target_layer_ids": [1, 5, 8]}
    config |= {"ttt_length": 7, "step_loss_decay": 0.8, "tie_word_embeddings": False}
    copies = {"embed_tokens.weight": head(), "lm_head.weight": head()}
    return write(folder, config | keys, tensors | copies | norms)


def two_layers(folder: Path) -> Path:
    """The second adds nothing to what the first leaves."""
    config, tensors = bundled()
    for name, tensor in list(tensors.items()):
        if name.startswith("layers.0.") and "hidden_norm" not in name:
            own = tensor[:, :WIDTH] if "_proj" in name and tensor.shape[1] == 2 * WIDTH else tensor
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            tensors[name.replace("layers.0.", "layers.1.")] = torch.zeros_like(own) if adds else own.clone()
    return write(folder, config | {"num_hidden_layers": 2}, tensors)


def wider(folder: Path) -> Path:
    """The same function with features that end in zeros: what norms divide by is smaller, their weights make up for."""
    config, tensors = bundled()
    shrink = WIDTH / WIDER
    tensors |= {"embed_tokens.weight": head(), "lm_head.weight": head()}
    padded: Tensors = {}
    for name, tensor in tensors.items():
        made = tensor.float()
        if "norm" in name:
            made = made * math.sqrt(shrink)
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            made = widen(made.unflatten(1, (2, WIDTH))).flatten(1)
        elif name.endswith(("fc.weight", "o_proj.weight", "down_proj.weight")):
            made = widen(made.T).T
        else:
            made = widen(made)
        padded[name] = made
    config |= {"hidden_size": WIDER, "target_hidden_size": WIDTH, "rms_norm_eps": config["rms_norm_eps"] * shrink}
    return write(folder, config, padded)


def widen(tensor: Tensor) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, WIDER - WIDTH))


def eagle1(folder: Path, fc_bias: bool = False) -> Path:
    """What GRIFFIN's drafter has in common with an EAGLE-1 drafter."""
    config = json.loads((GRIFFIN / "config.json").read_text())
    config |= {"architectures": ["LlamaForCausalLM"], "speculators_model_type": None}
    tensors = load_file(GRIFFIN / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("fc.")}
    kept["fc.weight"] = tensors["fc.fc.weight"]
    kept["layers.0.mlp.down_proj.weight"] = tensors["layers.0.mlp.down_proj.weight"][:WIDTH]
    if fc_bias:
        kept["fc.bias"] = tensors["fc.fc.bias"] + 0.1  # the drafter's own is next to nothing
    return write(folder, config, kept)


@pytest.fixture(scope="module")
def as_bundled(alone: Engines, plain: Result) -> int:
    """Drafts that the bundled drafter has accepted."""
    result = draft(alone, EAGLE3)
    assert differing(result, plain) == []
    return accepted(result)


def test_safeailabs_layout(alone: Engines, plain: Result, tmp_path: Path) -> None:
    said = Counter(token for output in plain["outputs"] for token in output["ids"])
    result = draft(alone, safeailab(tmp_path / "drafter", said))
    assert differing(result, plain) == []
    assert accepted(result) > 200


@pytest.mark.extended
def test_specforges_layout(alone: Engines, plain: Result, as_bundled: int, tmp_path: Path) -> None:
    result = draft(alone, specforge(tmp_path / "drafter"))
    assert differing(result, plain) == []
    assert accepted(result) == as_bundled > 200


@pytest.mark.extended
def test_speculators_layout(alone: Engines, plain: Result, as_bundled: int, tmp_path: Path) -> None:
    result = draft(alone, speculators(tmp_path / "drafter"))
    assert differing(result, plain) == []
    assert accepted(result) == as_bundled > 200


@pytest.mark.extended
def test_norm_before_residual_is_honoured(alone: Engines, plain: Result, as_bundled: int, tmp_path: Path) -> None:
    """The drafter was trained without it, and drafts worse."""
    result = draft(alone, speculators(tmp_path / "drafter", norm_before_residual=True))
    assert differing(result, plain) == []
    assert accepted(result) < as_bundled


@pytest.mark.extended
def test_qwen3s_layer_and_deepseeks_layout_of_it(alone: Engines, plain: Result, tmp_path: Path) -> None:
    norms = {f"layers.0.self_attn.{x}_norm.weight": torch.full((64,), 1.0) for x in "qk"}
    results = [
        draft(alone, speculators(tmp_path / "speculators", {"model_type": "qwen3"}, norms)),
        draft(alone, deepspec(tmp_path / "deepspec", norms)),
        draft(alone, deepspec(tmp_path / "other states", norms, target_layer_ids=[0, 5, 8])),
    ]
    for result in results:
        assert differing(result, plain) == []
    assert accepted(results[0]) == accepted(results[1]) != accepted(results[2])
    assert accepted(results[1]) > 50


@pytest.mark.extended
def test_all_norms_at_once(alone: Engines, plain: Result, tmp_path: Path) -> None:
    """Those of EAGLE-3.1 and the one before ``fc``, with a drafter that was trained without them."""
    config, tensors = bundled()
    tensors |= {f"fc_norm.{state}.weight": torch.ones(WIDTH) for state in range(3)}
    tensors["input_norm.weight"] = torch.ones(3 * WIDTH)
    config |= {"fc_norm": True, "norm_output": True, "norm_before_fc": True}
    result = draft(alone, write(tmp_path / "drafter", config, tensors))
    assert differing(result, plain) == []


@pytest.mark.extended
def test_several_layers(alone: Engines, plain: Result, as_bundled: int, tmp_path: Path) -> None:
    result = draft(alone, two_layers(tmp_path / "drafter"))
    assert differing(result, plain) == []
    assert accepted(result) == as_bundled


@pytest.mark.extended
def test_another_hidden_size(alone: Engines, plain: Result, as_bundled: int, tmp_path: Path) -> None:
    """Sums come out in another order, which may turn a near tie."""
    result = draft(alone, wider(tmp_path / "drafter"))
    assert differing(result, plain) == []
    assert accepted(result) == pytest.approx(as_bundled, rel=0.03)


@pytest.mark.extended
def test_a_layer_with_a_window(alone: Engines, plain: Result, as_bundled: int, tmp_path: Path) -> None:
    """The drafter was trained without one, and looks at little but the last few tokens."""
    config, tensors = bundled()
    window = {"layer_types": ["sliding_attention"], "sliding_window": 8}
    result = draft(alone, write(tmp_path / "drafter", config | window, tensors))
    assert differing(result, plain) == []
    assert 200 < accepted(result) < as_bundled
    assert result["cache_groups"] == 1
    # vLLM's own method gives each layer of the target pages of its own.
    stock = {"method": "eagle3", "model": str(tmp_path / "drafter"), "num_speculative_tokens": 4}
    rows = [{"ids": list(range(100, 140)), "sampling": GREEDY | {"max_tokens": 4}}]
    assert alone({"speculative_config": stock}, rounds=[rows])["cache_groups"] == 13


@pytest.mark.extended
def test_eagle_1_and_as_griffin(alone: Engines, plain: Result, tmp_path: Path) -> None:
    """Served as it is, and converted: the same drafts as method eagle-tree's, but for sums in another order."""
    folder = eagle1(tmp_path / "drafter")
    done = CliRunner().invoke(app, ["convert", str(folder), str(tmp_path / "griffin"), "--to", "griffin"])
    assert done.exit_code == 0, done.output
    as_eagle = draft(alone, folder, "eagle-tree")
    assert differing(as_eagle, plain) == []
    assert accepted(as_eagle) > 0
    for drafter in (folder, tmp_path / "griffin"):
        result = draft(alone, drafter, "griffin")
        assert differing(result, plain) == []
        assert accepted(result) == pytest.approx(accepted(as_eagle), rel=0.03)


@pytest.mark.extended
def test_a_bias_that_vllms_class_would_leave_out_is_read(alone: Engines, plain: Result, tmp_path: Path) -> None:
    """The drafter was trained without it, and drafts otherwise."""
    result = draft(alone, eagle1(tmp_path / "drafter", fc_bias=True), "griffin")
    assert differing(result, plain) == []
    assert accepted(result) != accepted(draft(alone, eagle1(tmp_path / "without"), "griffin"))

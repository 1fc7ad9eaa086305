"""A client's bundle, and MoA's drafter that is read from it."""

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.methods.moa.checkpoint import read_shape, read_tensors
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.remote.device import bundle as bundles
from vllm_specext.remote.device.make_bundle import make
from vllm_specext.remote.device.moa_drafter import MoAClientDrafter
from vllm_specext.remote.device.wording import Growing, Wording
from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.fingerprint import fingerprint
from vllm_specext.remote.protocol import Sampling
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.calibration import FIRST, Learned

MOA = MODELS / "moa"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "new"
    make(str(TARGET), MOA, path, torch.float32)
    return path


def test_a_bundle_is_what_it_says(folder: Path) -> None:
    bundle = bundles.read(folder)
    assert bundle.fingerprint == fingerprint(MOA / "model.safetensors")
    assert bundle.tied
    assert bundle.ends == [0, 3]
    held = load_file(folder / "model.safetensors")
    for name, tensor in read_tensors(MOA).items():
        kept = name.startswith(("self_attention.", "cross_attention.")) and name not in bundles.SERVERS
        assert (name in held) == kept
        assert not kept or torch.equal(held[name], tensor.float())
    assert (folder / "tokenizer.json").read_bytes() == (TARGET / "tokenizer.json").read_bytes()


def test_the_fingerprint_knows_a_drafter_from_one_that_was_trained_longer(tmp_path: Path) -> None:
    tensors = {name: tensor.float() for name, tensor in read_tensors(MOA).items()}
    first, other = tmp_path / "first.safetensors", tmp_path / "other.safetensors"
    save_file(tensors, first)
    save_file({name: tensor * 1.001 for name, tensor in tensors.items()}, other)
    assert fingerprint(first) != fingerprint(other)
    assert len(fingerprint(first)) == 64


def change(folder: Path, to: Path, **changes: Any) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    path = to / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return to


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": 2}, "version: Input should be 1"),
        ({"fingerprint": "x"}, "fingerprint: "),
        ({"more": 1}, "more: Extra inputs are not permitted"),
        ({"vocab_size": 1 << 30}, "vocab_size: "),
        ({"vocab_size": 2047}, r"tensor embedding.weight has shape \[2048, 256\]; expected \[2047, 256\]"),
        ({"tied": False}, "lacks tensor head.weight"),
        ({"rope_theta": 0}, "rope_theta: "),
        ({"depth": 99}, "depth: "),
    ],
)
def test_a_bundle_that_contradicts_itself_is_refused_in_one_sentence(
    folder: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as refused:
        bundles.read(change(folder, tmp_path / "changed", **changes))
    assert "\n" not in str(refused.value)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is no bundle: it has no bundle\.json"):
        bundles.read(tmp_path)


def test_a_drafter_of_another_target_is_not_bundled(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is for a target with hidden size 256"):
        make(str(MODELS / "foreign_bpe"), MOA, tmp_path / "new", torch.float32)


def rows_of(tokens: int) -> tuple[Tensor, Tensor]:
    """Any rows: what a client's drafter does with them does not depend on where they come from."""
    torch.manual_seed(tokens)
    return torch.randn(tokens, 2, 64), torch.randn(tokens, 2, 64)


class Reference:
    """The plain drafter, which reads a path at a time from its beginning."""

    def __init__(self) -> None:
        self.model = MoADrafter(read_shape(MOA)).float()
        self.model.load_state_dict(read_tensors(MOA))
        self.embedding = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"].float()

    @torch.no_grad()
    def log_probs(self, path: list[int], rows: tuple[Tensor, Tensor]) -> Tensor:
        """Of the token after a text with a part of a tree."""
        at = torch.arange(len(path))[None]
        causal = torch.ones(1, 1, len(path), len(path), dtype=torch.bool).tril()
        hidden, _ = self.model.read(self.embedding[torch.tensor(path)][None], at, causal)
        verified = tuple(side.transpose(0, 1)[None] for side in rows)
        features = self.model.predict(hidden, at, verified)[0, -1]  # type: ignore[arg-type]
        return torch.log_softmax(features @ self.embedding.T, dim=0)

    def tree(
        self, text: list[int], rows: tuple[Tensor, Tensor], shape: TreeShape, sharpness: float
    ) -> set[tuple[int, ...]]:
        """Its nodes as paths."""
        pool: dict[tuple[int, ...], float] = {}
        frontier: dict[tuple[int, ...], float] = {(): 0.0}
        for _ in range(shape.depth):
            grown: dict[tuple[int, ...], float] = {}
            for path, score in frontier.items():
                best = (sharpness * self.log_probs(text + list(path), rows)).log_softmax(dim=0).topk(shape.top_k)
                for token, log_prob in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                    grown[(*path, token)] = score + log_prob
            pool |= grown
            frontier = dict(sorted(grown.items(), key=lambda one: -one[1])[: shape.top_k])
        return {path for path, _ in sorted(pool.items(), key=lambda one: -one[1])[: shape.nodes]}


def paths(ids: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(ids, parents, strict=True):
        found.append((*found[parent], token))
    return set(found[1:])


def test_its_trees_are_those_of_the_plain_drafter(folder: Path) -> None:
    """Also after a text that goes on, and after one that was rewritten."""
    bundle, reference, shape = bundles.read(folder), Reference(), TreeShape(12, 3, 3)
    whole = bundles.drafter_of(folder, bundle)
    learned = Learned.nothing("cpu")
    drafter = MoAClientDrafter(whole._model, bundle.self_attention, bundle.cross_attention, shape, learned)
    chooser = torch.Generator().manual_seed(1)
    text = torch.randint(2048, (9,), generator=chooser).tolist()
    for length, change in ((9, 0), (14, 0), (14, 4), (11, 0)):
        more = torch.randint(2048, (max(0, length - len(text) + change),), generator=chooser).tolist()
        text = (text[: length - change] + more)[:length]
        rows = rows_of(length - 1)
        drafter.take(0, *rows)
        drafted = asyncio.run(drafter.draft(text, 62))
        sharpness = float(learned.logarithms[0].exp())
        assert paths(drafted.ids.tolist(), drafted.parents.tolist()) == reference.tree(text, rows, shape, sharpness)
        assert asyncio.run(drafter.say(text, Sampling(0))) == int(reference.log_probs(text, rows).argmax())
    assert len(asyncio.run(drafter.draft(text, 5)).ids) == 5


def test_rows_that_come_late_are_not_looked_at_and_none_gives_no_tree(folder: Path) -> None:
    drafter = bundles.drafter_of(folder, bundles.read(folder))
    assert len(asyncio.run(drafter.draft([1, 2, 3], 62)).ids) == 0
    assert 0 <= asyncio.run(drafter.say([1, 2, 3], Sampling(7, temperature=1.0))) < 2048
    keys, values = rows_of(6)
    assert drafter.take(0, keys[:3], values[:3]) == 3
    assert drafter.take(2, keys[2:], values[2:]) == 6
    assert drafter.take(5, keys[:1], values[:1]) == 6
    drafted = asyncio.run(drafter.draft([1, 2, 3], 62))  # sees the rows of its first two tokens
    other = drafter.for_another_text()
    other.take(0, keys[:2], values[:2])
    assert asyncio.run(other.draft([1, 2, 3], 62)).ids.tolist() == drafted.ids.tolist()


def test_what_the_texts_say_of_its_trees_is_learned_for_all_of_them(folder: Path) -> None:
    bundle = bundles.read(folder)
    whole, learned = bundles.drafter_of(folder, bundle), Learned.nothing("cpu")
    layers = bundle.self_attention, bundle.cross_attention

    def drafted(drafter: MoAClientDrafter, text: list[int]) -> tuple[Drafted, float]:
        drafter.take(0, *rows_of(len(text) - 1))
        return drafter.tree(text, 62), float(learned.logarithms[0])

    drafter = MoAClientDrafter(whole._model, *layers, TreeShape(12, 3, 3), learned)
    text = [1, 2, 3, 4]
    tree, first = drafted(drafter, text)
    assert first == pytest.approx(math.log(FIRST[0]))
    absent = next(token for token in range(2048) if token not in tree.ids)
    _, lower = drafted(drafter, [*text, absent])
    assert lower < first  # nothing was accepted
    tree, same = drafted(drafter.for_another_text(), text)
    assert same == lower  # another text says nothing of that tree
    longest = max(paths(tree.ids.tolist(), tree.parents.tolist()), key=len)
    other = drafter.for_another_text()
    _, before = drafted(other, text)
    _, higher = drafted(other, [*text, *longest, absent])
    assert higher > before == lower
    assert drafted(other, text)[1] == higher  # a text that was taken back says nothing


def test_a_text_that_grows_is_the_text_of_its_tokens(folder: Path) -> None:
    wording = Wording(folder)
    ids = wording.of_text("größer – def f(x):\n    return {x}\n")
    growing = Growing(wording)
    said = "".join(growing.more([token]) for token in ids)
    assert said + growing.end() == wording.text(ids)
    lost = growing.retract(3)
    assert wording.text(ids)[: len(wording.text(ids)) - lost] == wording.text(ids[:-3])


def test_messages_that_the_template_refuses_are_refused_in_a_sentence(folder: Path) -> None:
    wording = Wording(folder)
    wording._tokenizer.chat_template = "{{ raise_exception('System role not\n supported') }}"
    with pytest.raises(ConfigurationError, match="chat template refuses the messages: System role not supported"):
        wording.of_chat([{"role": "system", "content": "Be brief."}])


WITHOUT_VLLM = """
import sys
for name in ("vllm", "triton", "accelerate", "datasets"):
    sys.modules[name] = None
from vllm_specext.remote.device import asking, proxy
from vllm_specext.remote.device.bundle import read
from pathlib import Path
print(read(Path(sys.argv[1])).fingerprint)
"""


def test_a_client_needs_no_vllm(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_VLLM, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == bundles.read(folder).fingerprint

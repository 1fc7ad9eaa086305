"""What users get wrong, as command lines, and what the one sentence about it has to name.

A command runs in a folder of its own. ``TARGET`` and ``BUNDLED`` stand for the bundled target and for the folder of all
bundled models, ``PORT`` for a port that is taken.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.launches import copy_of_drafter, drop, truncate
from vllm_specext.served_drafter import served_keys

Prepare = Callable[[Path], object]


def nothing(folder: Path) -> None:
    """For commands that need no files."""


@dataclass(frozen=True)
class BadInput:
    arguments: tuple[str, ...]
    names: tuple[str, ...]
    """What the sentence has to contain."""
    prepare: Prepare = nothing
    without: str | None = None
    """The Python package that is not installed."""


def launch(config: Any, *names: str, prepare: Prepare = nothing) -> BadInput:
    """``serve`` with ``config`` as it stands, or as JSON of it."""
    text = config if isinstance(config, str) else json.dumps(config)
    return BadInput(("serve", "TARGET", f"--speculative-config={text}"), names, prepare)


def griffin(*names: str, prepare: Prepare = nothing, **keys: Any) -> BadInput:
    return launch({"method": "griffin", "model": "BUNDLED/griffin", **keys}, *names, prepare=prepare)


def command(line: str, *names: str, prepare: Prepare = nothing, without: str | None = None) -> BadInput:
    return BadInput(tuple(line.split()), names, prepare, without)


def truncated(folder: Path) -> None:
    copy_of_drafter("griffin", folder, truncate)


def file(name: str, text: str) -> Prepare:
    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    return write


def without_its_norm(folder: Path) -> None:
    copy_of_drafter("eagle3-tree", folder, drop("norm.weight"))


PEAGLE = {"speculators_model_type": "peagle", "speculators_config": {}, "transformer_layer_config": {}}
SET = {"model": "t", "architecture": "LlamaForCausalLM", "layers": 12, "hidden_size": 256, "vocab_size": 2048}
SET |= {"skip_ratio": 0.25, "skipped_attention": [1], "skipped_mlp": [2], "matchness": 0.5, "steps": 1, "history": []}
listed = file("drafter/config.json", '{"model_type": ["x"]}')
found = file("set.json", json.dumps(SET))
DEEP = 90_000 * "["
GONE = '{"method": "griffin", "model": "./gone"}'


def served(target: Any, *, arguments: str = "", names: tuple[str, ...]) -> BadInput:
    """A drafter that is served by its own name, and says that this is its target."""
    prepare = file("drafter/config.json", json.dumps(served_keys("griffin", target)))
    return command(f"serve ./drafter {arguments}", "drafter/config.json", *names, prepare=prepare)


SERVE: dict[str, BadInput] = {
    "a misspelt method": griffin(
        "'method' is 'grifin'", "griffin, eagle3-tree, eagle-tree, peagle-tree", method="grifin"
    ),
    "a list of methods": griffin("'method' is ['griffin']", method=["griffin"]),
    "an empty list": launch("[]", "--speculative-config is []", "JSON object"),
    "a text": launch('"x"', "--speculative-config is 'x'", "JSON object"),
    "a number": launch("5", "--speculative-config is 5", "JSON object"),
    "a brace": launch("{", "--speculative-config is {", "not JSON"),
    "deeply nested JSON": launch(DEEP, "--speculative-config", "nested"),
    "a deeply nested key": griffin("--speculative-config", "nested", model=json.loads(100 * "[" + 100 * "]")),
    "a misspelt key": griffin("'tree_topk' is unknown", "tree_top_k", tree_topk=1),
    "a number as text": griffin("'num_speculative_tokens' is 'four'", "integer", num_speculative_tokens="four"),
    "a key out of range": griffin("'tree_depth' is 0", "greater than or equal to 1", tree_depth=0),
    "more nodes than a tree has": griffin(
        "'num_speculative_tokens' is 21", "at most 20", num_speculative_tokens=21, tree_depth=2, tree_top_k=4
    ),
    "no drafter": launch({"method": "moa"}, "'model' is missing"),
    "a missing vocabulary": griffin("'draft_vocab_file' is 'gone'", "no file", draft_vocab_file="gone"),
    "a vocabulary of another target": griffin(
        "ids.json: vocab_size is 5", "2048", draft_vocab_file="ids.json", prepare=file("ids.json", '{"vocab_size": 5}')
    ),
    "a drafter's missing folder": launch(GONE, "'model' is './gone'"),
    "a drafter that cannot be fetched": griffin("'model' is 'no/drafter'", "hub", model="no/drafter"),
    "a drafter's damaged config.json": griffin(
        "drafter/config.json",
        "JSON",
        model="./drafter",
        prepare=file("drafter/config.json", "{"),
    ),
    "a drafter with a list of model types": griffin(
        "drafter/config.json: model_type is ['x']", model="./drafter", prepare=listed
    ),
    "another method's drafter with it": launch(
        {"method": "slem", "model": "./drafter"}, "drafter/config.json: model_type is ['x']", prepare=listed
    ),
    "a truncated drafter": griffin("drafter/model.safetensors", "truncated", model="./drafter", prepare=truncated),
    "an EAGLE-3 drafter without a tensor": launch(
        {"method": "eagle3-tree", "model": "./drafter"},
        "drafter/model.safetensors",
        "lacks tensor norm.weight",
        prepare=without_its_norm,
    ),
    "a drafter of P-EAGLE": launch(
        {"method": "eagle3-tree", "model": "./drafter"},
        "drafter/config.json: speculators_model_type is 'peagle'",
        "P-EAGLE",
        prepare=file("drafter/config.json", json.dumps(PEAGLE)),
    ),
    "a combination that is refused": command(
        'serve TARGET --pipeline-parallel-size=2 --speculative-config={"method":"swift"}', "--pipeline-parallel-size"
    ),
    "a missing target": command("serve ./gone", "'./gone', which does not exist"),
    "a damaged target": command(
        "serve ./target", "target/config.json is not valid JSON", prepare=file("target/config.json", "{")
    ),
    "a target that cannot be fetched": command("serve no/model", "'no/model'", "hub"),
    "a served drafter's missing target": served("../gone", names=("name_or_path is '../gone'", "neither there")),
    "a served drafter's target that is none": served(["a"], names=("name_or_path is ['a']", "string")),
    "a served drafter's target that cannot be fetched": served("no/model", names=("name_or_path is 'no/model'", "hub")),
    "a served drafter as its own target": served(".", names=("name_or_path is '.'", "itself a drafter")),
    "a served drafter with another method": served(
        "no/model", arguments='--speculative-config={"method":"moa"}', names=("'griffin'", "'method' is 'moa'")
    ),
    "a port that cannot be": command("serve TARGET --port 99999999", "--port is '99999999'", "65535"),
    "a taken port": command("serve TARGET --port PORT", "--port PORT", "in use"),
    "an option of vLLM's": command("serve TARGET --max-model-len=x", "--max-model-len", "'x'"),
    "serve without vLLM": command("serve TARGET", "vllm", "vllm-specext[gpu]", "vllm-specext[cpu]", without="vllm"),
}
BENCH: dict[str, BadInput] = {
    "no output": command("bench sweep", "--output"),
    "a file as the output": command("bench sweep --output a", "--output is 'a'", "file", prepare=file("a", "")),
    "an output below a file": command("bench serve --output a/b", "--output is 'a/b'", prepare=file("a", "")),
    "an output that cannot be made": command("bench latency --output /proc/x", "--output is '/proc/x'"),
    "no rounds": command("bench sweep --output o --rounds 0", "--rounds", "1"),
    "no nodes": command("bench sweep --output o --nodes 0", "--nodes is 0", "1 to"),
    "a row that is no JSON": command("bench sweep --output o --config a={", "--config is 'a={'"),
    "a row's missing drafter": BadInput(
        ("bench", "acceptance", "--output=o", f"--config=a={GONE}"), ("'model' is './gone'",)
    ),
    "the target's missing folder": command("bench sweep --output o --target ./gone", "--target is './gone'"),
    "missing prompts": command("bench sweep --output o --prompts gone", "--prompts is 'gone'"),
    "deeply nested prompts": command(
        "bench sweep --output o --prompts p", "--prompts is 'p'", "JSON", prepare=file("p", DEEP)
    ),
    "no server": command("bench serve --output o --url a=http://127.0.0.1:1", "http://127.0.0.1:1"),
    "bench without pandas": command("bench serve --output o", "pandas", "vllm-specext[bench]", without="pandas"),
    "bench without openai": command("bench sweep --output o", "openai", "vllm-specext[bench]", without="openai"),
}
OTHERS: dict[str, BadInput] = {
    "no such command": command("grifin", "'grifin'"),
    "no such option": command("methods --grifin", "--grifin"),
    "no such option of the doctor": command("doctor --grifin", "--grifin"),
    "the demonstration's port": command("demo --serve --port 99999999", "--port"),
    "the demonstration's taken port": command("demo --serve --port PORT", "--port PORT", "in use"),
    "rows in a missing folder": command("demo --json gone/x", "--json is 'gone/x'", "'gone'"),
    "rows in a folder": command("demo --json .", "--json is '.'", "folder"),
    "a picture in a missing folder": command("demo --plot gone/x.png", "--plot is 'gone/x.png'", "'gone'"),
    "a picture that is no PNG": command("demo --plot x.svg", "--plot is 'x.svg'", ".png"),
    "demo without openai": command("demo", "openai", "vllm-specext[bench]", without="openai"),
    "a missing tokenizer": command("pair TARGET ./gone", "DRAFTER is './gone'"),
    "a damaged tokenizer": command(
        "pair model TARGET", "TARGET is 'model'", prepare=file("model/tokenizer.json", "{}")
    ),
    "a missing text": command("pair TARGET TARGET --text gone", "--text is 'gone'"),
    "pair without tokenizers": command("pair TARGET TARGET", "tokenizers", "vllm-specext[cpu]", without="tokenizers"),
    "a missing text to count": command("vocab --target TARGET --text gone", "--text is 'gone'", "no file"),
    "a missing target to count for": command(
        "vocab --target ./gone --text a", "--target is './gone'", prepare=file("a", "a")
    ),
    "ids in a missing folder": command(
        "vocab --target TARGET --text a --output gone/ids.json", "--output is 'gone/ids.json'", prepare=file("a", "a")
    ),
    "a missing drafter to convert": command("convert ./gone new --to griffin", "SRC is './gone'", "hub id"),
    "a format that is none": command("convert BUNDLED/griffin new --to eagle4", "--to", "eagle4", "speculators"),
    "no format": command("convert BUNDLED/griffin new", "--to"),
    "a way that does not exist": command(
        "convert BUNDLED/eagle3 new --to griffin", "eagle3 is a checkpoint of EAGLE-3", "--to griffin takes EAGLE-1"
    ),
    "a truncated drafter to convert": command(
        "convert drafter new --to griffin", "drafter/model.safetensors is truncated", prepare=truncated
    ),
    "a drafter to convert without a tensor": command(
        "convert drafter new --to speculators --target TARGET", "lacks tensor norm.weight", prepare=without_its_norm
    ),
    "a converted drafter without its target": command(
        "convert BUNDLED/griffin new --to speculators", "--target is missing"
    ),
    "another target for a converted drafter": command(
        "convert BUNDLED/griffin new --to speculators --target BUNDLED/foreign_bpe",
        "--target is",
        "foreign_bpe', whose hidden_size is 128",
    ),
    "a full folder for a converted drafter": command(
        "convert BUNDLED/griffin a --to griffin", "DST is 'a', which is not empty", prepare=file("a/b", "")
    ),
    "a file for a converted drafter": command(
        "convert BUNDLED/griffin a --to griffin", "DST is 'a'", "a file", prepare=file("a", "")
    ),
    "a converted drafter that cannot be written": command(
        "convert BUNDLED/griffin /proc/x --to griffin", "DST is '/proc/x', which cannot be written"
    ),
    "a missing set": command("swift gone", "gone is no file"),
    "a set that is no JSON": command("swift set.json", "set.json is not a JSON file", prepare=file("set.json", DEEP)),
    "a picture below a file": command("swift set.json --output set.json/x.png", "--output is", prepare=found),
    "a picture of no format": command("swift set.json --output x.xyz", "--output is 'x.xyz'", prepare=found),
    "swift without matplotlib": command(
        "swift set.json --output x.png", "matplotlib", "vllm-specext[bench]", prepare=found, without="matplotlib"
    ),
}
BAD_INPUTS = SERVE | BENCH | OTHERS

"""What is compared: names, and the ``--speculative-config`` that each stands for. Plain decoding comes first, whatever
the user names, on a CPU in two rows. vLLM's own methods follow, with our trees beside its EAGLE."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_specext.bench.vllms_own import SUFFIX, draft_model_configs, has_suffix
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import ALWAYS, CHOICE, CONFIGURATIONS, DFLASH, EAGLE3_TREE, MODELS
from vllm_specext.measure.plain import PLAIN, SEEDED_ENVIRONMENT, STOCK, STOCK_ENVIRONMENT
from vllm_specext.options.base import MAX_DRAFT_TOKENS
from vllm_specext.options.check import parse
from vllm_specext.options.trees import DrafterOptions
from vllm_specext.registry import METHODS
from vllm_specext.speculative_config import check
from vllm_specext.tree.budget import pool_size

NGRAM: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
}
"""vLLM's own n-grams; the drafts are as long as those of the bundled chains."""
EAGLE_TOKENS = 4
EAGLE3: dict[str, Any] = {
    "method": "eagle3",
    "model": str(MODELS / "eagle3"),
    "num_speculative_tokens": EAGLE_TOKENS,
}
"""vLLM's own EAGLE-3. Its drafter for the bundled target was trained for as long as the bundled GRIFFIN drafter, on the
same text."""
VLLM_TLI: dict[str, Any] = {
    "method": "draft_model",
    "model": str(MODELS / "foreign_bpe"),
    "num_speculative_tokens": 4,
    "use_heterogeneous_vocab": True,
}
"""vLLM's own TLI, with the drafter and the length of the demonstration's ``tli``."""
QUICK = ("griffin-chain", "griffin-tree", "moa-tree", "swift", "slem")
"""The demonstration's rows that a quick run has, because each costs the start of an engine."""
EAGLE_ROWS, SMALL_ROWS = ("eagle", "eagle-tree"), ("draft-model", "draft-model-tree")
ANY_LOAD = 1 << 20
"""The last number of running requests in a schedule that holds for any load."""


@dataclass(frozen=True)
class Configuration:
    """A name and its ``--speculative-config``, ``speculative``, which is ``None`` for plain decoding. ``environment``
    is what its process has beside ours."""

    name: str
    speculative: dict[str, Any] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def most_nodes(self) -> int:
        """The most nodes of the trees that a drafter grows and whose size is for the user to choose; 0 without such.
        SWIFT's drafts are none of these: their length follows from how sure the drafter is."""
        if self.speculative is None or self.speculative["method"] not in METHODS:
            return 0
        options = parse(METHODS[self.speculative["method"]].options, self.speculative)
        if not isinstance(options, DrafterOptions) or options.tree is None:
            return 0
        return pool_size(options.tree.depth, options.tree.top_k)

    @property
    def grows_trees(self) -> bool:
        """Whether a drafter grows trees, whose size is for the user to choose."""
        return self.most_nodes > 0

    def sizes(self, nodes: Sequence[int]) -> list[int]:
        """The numbers of ``nodes`` that its trees can have; none where it drafts nothing with any of them."""
        own = [number for number in nodes if number <= self.most_nodes]
        return own if any(own) else []

    @property
    def keeps_samples(self) -> bool:
        """Whether a seeded answer that is drawn has the tokens of the row ``plain``. vLLM's own methods, and those that
        draw their drafts, verify with other random numbers; vLLM as it is may draw on another model runner."""
        if self.speculative is None or self.speculative["method"] not in METHODS:
            return self.name == PLAIN
        return not parse(METHODS[self.speculative["method"]].options, self.speculative).samples_drafts

    def always_drafting(self) -> "Configuration":
        """This configuration with as many drafted tokens whether they pay or not, where nothing is said about that."""
        speculative = self.speculative
        if speculative is None or speculative["method"] not in METHODS or not CHOICE.isdisjoint(speculative):
            return self
        return replace(self, speculative=speculative | ALWAYS)

    def with_nodes(self, nodes: int) -> "Configuration":
        """This configuration with trees of ``nodes`` under any load; with 0 the drafter only reads along."""
        own: dict[str, Any] = {"num_speculative_tokens_per_batch_size": [[1, ANY_LOAD, nodes]]}
        if nodes:
            own["num_speculative_tokens"] = nodes
        return replace(self, speculative=(self.speculative or {}) | own)


def chosen(
    target: str | None, given: Sequence[str], eagle: str | None, quick: bool, draft_model: str | None = None
) -> list[Configuration]:
    """``plain``, ``ngram``, ``suffix`` where vLLM can run it and unless ``quick``, ``eagle`` and ``eagle-tree`` with
    the drafter given for them or ``eagle3`` and ``eagle3-tree`` with the bundled target's, ``draft-model`` and
    ``draft-model-tree`` with the small model given for them, then each ``NAME=JSON`` of ``given``, or the
    demonstration's where neither a target nor a configuration is given, with ``vllm-tli`` where these have TLI and
    ``dflash`` where they have DFlash's trees. One named ``ngram``, ``suffix``, ``eagle3`` or ``eagle3-tree`` replaces
    this one."""
    found: dict[str, dict[str, Any] | None] = {PLAIN: None, "ngram": NGRAM}
    if has_suffix() and not quick:
        found["suffix"] = SUFFIX
    if eagle is not None:
        found["eagle"], found["eagle-tree"] = eagle_configs(eagle)
    elif target is None:
        found |= {"eagle3": EAGLE3, "eagle3-tree": EAGLE3_TREE}
    if draft_model is not None:
        found["draft-model"], found["draft-model-tree"] = draft_model_configs(draft_model)
    theirs = (
        PLAIN,
        STOCK,
        *(EAGLE_ROWS if eagle is not None else ()),
        *(SMALL_ROWS if draft_model is not None else ()),
    )
    own: dict[str, dict[str, Any]] = {}
    for text in given:
        name, config = read(text)
        if name in own or name in theirs:
            raise ConfigurationError(f"--config names {name!r}, but there is a row of that name already.")
        own[name] = config
    if not own and target is None:
        own = {name: config for name, config in CONFIGURATIONS if not quick or name in QUICK}
        if "tli" in own:
            found["vllm-tli"] = VLLM_TLI
        if "dflash-tree" in own:
            found["dflash"] = DFLASH
    return [Configuration(name, config) for name, config in (found | own).items()]


def after_stock(configurations: Sequence[Configuration]) -> list[Configuration]:
    """``configurations``, of which plain decoding is the first, after plain decoding by vLLM as it is."""
    return [Configuration(STOCK, environment=STOCK_ENVIRONMENT), *configurations]


def with_seeded_plain(configurations: Sequence[Configuration]) -> list[Configuration]:
    """``configurations`` with the row ``plain`` on the model runner of our methods, whichever vLLM would choose: on the
    other one the same seed gives other random numbers."""
    return [
        replace(each, environment={**each.environment, **SEEDED_ENVIRONMENT}) if each.name == PLAIN else each
        for each in configurations
    ]


def eagle_configs(drafter: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """vLLM's own chain and our tree, of EAGLE-3 where the drafter's name says so, as in vLLM."""
    method = "eagle3" if "eagle3" in drafter.lower() else "eagle"
    chain = {"method": method, "model": drafter, "num_speculative_tokens": EAGLE_TOKENS}
    return chain, {"method": f"{method}-tree", "model": drafter}


def read(text: str) -> tuple[str, dict[str, Any]]:
    """Name and configuration of ``NAME=JSON``, checked as far as that can be done without loading anything."""
    name, equals, rest = text.partition("=")
    try:
        config = json.loads(rest)
    except (ValueError, RecursionError):
        config = None
    if not (equals and name) or not isinstance(config, dict) or not isinstance(config.get("method"), str):
        raise ConfigurationError(
            f'--config is {text!r}, but must be a name, "=" and JSON with a method, '
            """such as tree='{"method": "griffin", "model": "FOLDER"}'."""
        )
    if set(name) & set("/\\"):
        raise ConfigurationError(f"--config names {name!r}, but a name also names files, so it has no slash.")
    check(config)
    return name, config


def check_nodes(configurations: Sequence[Configuration], nodes: Sequence[int]) -> None:
    """Refuse numbers of ``nodes`` that cannot be, or that no configuration has a use for. 0 stands for an engine that
    drafts nothing, and is allowed beside other sizes alone."""
    least = 0 if any(nodes) else 1
    if bad := [number for number in nodes if not least <= number <= MAX_DRAFT_TOKENS]:
        raise ConfigurationError(f"--nodes is {bad[0]}, but a tree has 1 to {MAX_DRAFT_TOKENS} nodes.")
    most = max(each.most_nodes for each in configurations)
    if nodes and not most:
        raise ConfigurationError("--nodes sets the size of draft trees, but no configuration drafts trees.")
    if nodes and max(nodes) > most:
        raise ConfigurationError(
            f"--nodes is {max(nodes)}, but the trees of the configurations have at most {most} nodes, with the "
            "tree_depth and tree_top_k that are given."
        )

"""The parts ``lossless``, and those whose names begin with ``lossless_``: whether tokens are those of plain decoding on
this GPU. GRIFFIN's trees in CUDA graphs, in all ways in which they are served; every other method in graphs; targets of
other kinds than the bundled one in graphs; and all without graphs.

The bundled models in float32 answer the requests of ``tests/engine``, greedy and seeded, in an engine of its own for
each configuration and several engines at a time. Where drafts are drawn, only the greedy ones are asked, because the
others are the same in their distribution alone. One row of each part is a deliberate fault, which has to be noticed.

In float16, the target's layers leave prefixes to FlashAttention 3, which knows no float32. There two kernels round
otherwise, so that some answers may differ; with the fault, more have to. So it is with recurrent layers, whose prompts
vLLM's kernels do not read in float32.
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite.engine_methods import IN_FLOAT8
from benchmarks.gpu_suite.machine import ROOT

AT_ONCE = max(2, 3 * (os.cpu_count() or 1) // 4)
"""Engines: each needs one core while it starts."""
SHARE_OF_THE_GPU = 0.01
"""That each wants to find free. The models are small, and larger ones may be starting beside them."""
LISTED_DIFFERENCES = 12
IN_GRAPHS: dict[str, Any] = {"enforce_eager": False, "cudagraph_capture_sizes": [1, 2, 4, 8, 25, 50, 100, 200]}
"""Compiled, and so beside plain decoding that is compiled too: those kernels round otherwise than eager passes."""
GRIFFIN = "griffin tree"
WRONG_BIT = "flip_an_ancestor_bit"
HALF: dict[str, Any] = {"dtype": "float16"}
MAY_DIFFER = 3
"""Answers of 24 in float16."""
RANDOM_MAY_DIFFER = 6
"""The same of a target with random weights, which is less certain. On a CPU 2 and 3 differ, with faults 15 and 8."""
MANY_REQUESTS = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
BY_LOAD = [[1, 2, 24], [3, 4, 9], [5, 8, 4]]
"""Drafted tokens by running requests: steps of three lengths, a chain among them, in graphs that hold more requests."""
ENVIRONMENT = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "HF_HUB_OFFLINE": "1",
    # vLLM's own attention leaves this to Triton, whose default is TensorFloat-32: 10 bits of mantissa, and so other
    # tokens than those of our kernels, which multiply in float32.
    "TRITON_F32_DEFAULT": "ieee",
}


@dataclass(frozen=True)
class Configuration:
    llm: dict[str, Any] = field(default_factory=dict)
    against: str | None = "plain"
    greedy_only: bool = False
    fault: str | None = None
    """A function of ``tests/engine/faults.py`` that makes the tokens wrong."""
    allowed: int = 0
    """Answers that may differ, because kernels round; with a fault, more have to."""
    draws_sizes: bool = False
    """Whether every step drafts another number of tokens, and trees of another depth."""

    def asked(self) -> list[int]:
        """Places of the requests among all."""
        temperatures = [request["sampling"].get("temperature") for request in chain.from_iterable(rounds())]
        return [place for place, temperature in enumerate(temperatures) if temperature == 0 or not self.greedy_only]


def rounds() -> list[list[dict[str, Any]]]:
    """The second is answered from the prefix cache in part."""
    from tests.engine.conftest import AGAIN, ROUND

    return [ROUND, AGAIN]


def methods() -> dict[str, dict[str, Any]]:
    """Arguments of ``vllm.LLM`` by name."""
    from tests.engine.conftest import eagle3, moa, of_method, tree
    from vllm_specext.measure.bundled import MODELS, SLEM, SLRS, SWIFT, TLI

    others = {"swift": SWIFT, "slem": SLEM, "tli": TLI, "slrs": SLRS}
    own = {name: {"speculative_config": each} for name, each in others.items()}
    trees = {
        GRIFFIN: tree(24, 4),
        "eagle3 tree": eagle3(24, 4),
        "p-eagle tree": with_p_eagle(),
        "pard tree": with_pard(1),
        "pard tree in three passes": with_pard(3),
        "dflash tree": of_method("dflash-tree", MODELS / "dflash", 24, 4),
        "dflash2 tree": with_dflash2(),
        "moa tree": moa(24, 4),
        # Room for paths that are longer than the trees are deep.
        "griffin tree and predictions": reading(tree(24, 4)),
        "moa tree and clients' trees": moa(24, 4, client_drafts=True),
    }
    return trees | own


@cache
def with_p_eagle() -> dict[str, Any]:
    """Trees of a drafter that drafts all positions at once, which no bundled one does."""
    from tests.engine.p_eagle import p_eagle_tree

    return p_eagle_tree(kept_to_the_end())


@cache
def with_pard(passes: int) -> dict[str, Any]:
    """The same of a small model, in so many ``passes``."""
    from tests.engine.pard import pard_tree

    return pard_tree(kept_to_the_end(), draft_passes=passes)


@cache
def with_dflash2() -> dict[str, Any]:
    """Trees of DFlash's second kind, of which none is bundled."""
    from tests.engine.dflash2 import dflash2_tree

    return dflash2_tree(kept_to_the_end())


def kept_to_the_end() -> Path:
    """A new folder, which is gone when the process ends."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def with_sinks() -> dict[str, Any]:
    """A target with windows and attention sinks, which no bundled one has."""
    from tests.engine.windows import windowed

    return {"model": str(windowed(kept_to_the_end(), sinks=True))}


def with_recurrent_layers() -> dict[str, Configuration]:
    """Trees, and a chain that vLLM's own rule verifies, for a target with such layers, which no bundled one has."""
    from tests.engine.hybrid import hybrid_tree, make_hybrid
    from tests.engine.test_foreign import foreign

    # Widths as real ones are, powers of two; FlashInfer's kernels are compiled by what may not be there.
    models = make_hybrid(kept_to_the_end(), linear_value_head_dim=64)
    triton = {"additional_config": {"gdn_prefill_backend": "triton"}, "mamba_ssm_cache_dtype": "float32"}
    target = IN_GRAPHS | HALF | triton | {"model": str(models[0])}
    trees = Configuration(hybrid_tree(models) | target, against="plain, hybrid", allowed=RANDOM_MAY_DIFFER)
    return {
        "plain, hybrid": Configuration(target, against=None),
        "hybrid tree": trees,
        "hybrid tree, states of chains": replace(trees, fault="go_on_as_chains"),
        # vLLM's warm-up has as many requests, each with the longest draft.
        "hybrid tree, room for many requests": replace(trees, llm=trees.llm | MANY_REQUESTS),
        "hybrid chain": replace(trees, llm=foreign("slem", models[1]) | target),
    } | with_mamba_2()


def with_mamba_2() -> dict[str, Configuration]:
    """The same of the other kind of such layers."""
    from tests.engine.hybrid import hybrid_tree
    from tests.engine.mamba_hybrid import make_granite
    from tests.engine.test_foreign import foreign

    # Widths as real ones are, powers of two.
    models = make_granite(kept_to_the_end(), mamba_d_state=64)
    target = IN_GRAPHS | HALF | {"model": str(models[0]), "mamba_ssm_cache_dtype": "float32"}
    trees = Configuration(hybrid_tree(models) | target, against="plain, mamba-2", allowed=RANDOM_MAY_DIFFER)
    return {
        "plain, mamba-2": Configuration(target, against=None),
        "mamba-2 tree": trees,
        "mamba-2 tree, states of chains": replace(trees, fault="go_on_as_chains"),
        "mamba-2 chain": replace(trees, llm=foreign("slem", models[1]) | target),
    }


def with_latent_attention() -> dict[str, Configuration]:
    """Trees of its module for such a target, and of EAGLE-3 drafters with latent attention and without, in the type
    that the backends' kernels take."""
    from tests.engine.conftest import of_method
    from tests.engine.latent import make_target
    from tests.engine.latent_drafters import CONFIGS, make_drafter
    from tests.engine.test_expert_modules import LEVELS, NODES, TOP_K, trees

    folder = kept_to_the_end()
    target = IN_GRAPHS | HALF | {"model": str(folder)}
    tree = Configuration(
        trees((folder, make_target(folder, "deepseek"))) | target, against="plain, latent", allowed=RANDOM_MAY_DIFFER
    )
    return {
        "plain, latent": Configuration(target, against=None),
        "latent tree": tree,
        "latent tree, a wrong mask bit": replace(tree, fault=WRONG_BIT),
        **{
            f"latent target, EAGLE-3 as {kind}": replace(
                tree,
                llm=of_method("eagle3-tree", make_drafter(kept_to_the_end(), kind), NODES, TOP_K, tree_depth=LEVELS)
                | target,
            )
            for kind in CONFIGS
        },
    }


def with_modules() -> dict[str, Configuration]:
    """Trees of a target's own module, and of an assistant that reads the target's keys and values."""
    from tests.engine.assistant import assistant_tree, make_assistant
    from tests.engine.test_architectures import make
    from tests.engine.test_mtp_tree import make_mimo
    from tests.engine.test_mtp_tree import trees as mimo_tree

    mimo, gemma = make_mimo(kept_to_the_end()), make("Gemma4", kept_to_the_end())
    assistant = assistant_tree((gemma, make_assistant(kept_to_the_end())))
    return {
        "plain, MiMo": Configuration(IN_GRAPHS | {"model": str(mimo)}, against=None),
        "mtp tree": Configuration(mimo_tree(mimo) | IN_GRAPHS, against="plain, MiMo"),
        "plain, Gemma 4": Configuration(IN_GRAPHS | {"model": str(gemma)}, against=None),
        "assistant's tree": Configuration(assistant | IN_GRAPHS, against="plain, Gemma 4"),
    }


def in_graphs() -> dict[str, Configuration]:
    from tests.engine.conftest import any_sizes, tree

    griffin = methods()[GRIFFIN] | IN_GRAPHS
    loads = tree(24, 4, BY_LOAD) | IN_GRAPHS | {"cudagraph_capture_sizes": [1, 2, 4, 8, 10, 20, 25, 40, 50]}
    half = Configuration(griffin | HALF, against="plain, float16", allowed=MAY_DIFFER)
    in_float8 = {"speculative_config": griffin["speculative_config"] | IN_FLOAT8}
    # What matters most comes first.
    return {
        "plain": Configuration(IN_GRAPHS, against=None),
        f"{GRIFFIN}, a wrong mask bit": Configuration(griffin, fault=WRONG_BIT),
        GRIFFIN: Configuration(griffin),
        "griffin by load": Configuration(loads),
        "griffin, any sizes": Configuration(any_sizes(loads), draws_sizes=True),
        "plain, float16": Configuration(IN_GRAPHS | HALF, against=None),
        "griffin tree, float16": half,
        "griffin tree, float16, a wrong mask bit": replace(half, fault=WRONG_BIT),
        "plain, with sinks": Configuration(IN_GRAPHS | with_sinks(), against=None),
        "griffin tree, with sinks": Configuration(griffin | with_sinks(), against="plain, with sinks"),
        "griffin tree, float16, drafter in float8": replace(half, llm=griffin | HALF | in_float8),
    }


def methods_in_graphs() -> dict[str, Configuration]:
    """All but ``GRIFFIN``."""
    tried = {name: Configuration(llm | IN_GRAPHS, greedy_only=name == "slrs") for name, llm in methods().items()}
    griffin = tried.pop(GRIFFIN)
    fault = {f"{GRIFFIN}, a wrong mask bit": replace(griffin, fault=WRONG_BIT)}
    return {"plain": Configuration(IN_GRAPHS, against=None)} | fault | tried


def hybrid_in_graphs() -> dict[str, Configuration]:
    """Of random weights, as those with latent attention, each beside its own plain decoding."""
    return with_recurrent_layers() | with_modules()


def eager() -> dict[str, Configuration]:
    from tests.engine.conftest import CHAIN, small, tree

    return {
        "plain": Configuration(against=None),
        f"{GRIFFIN}, a wrong mask bit": Configuration(tree(24, 4), fault=WRONG_BIT),
        **{name: Configuration(llm, greedy_only=name == "slrs") for name, llm in methods().items()},
        "griffin chain": Configuration({"speculative_config": CHAIN}),
        "griffin tree, fewer tokens to draft from": Configuration(small(tree(24, 4))),
        "predictions": Configuration({"speculative_config": {"method": "given", "adaptive_drafts": False}}),
    }


CONFIGURATIONS = {
    "graphs": in_graphs,
    "methods": methods_in_graphs,
    "hybrid": hybrid_in_graphs,
    "latent": with_latent_attention,
    "eager": eager,
}


def reading(config: dict[str, Any]) -> dict[str, Any]:
    """The same, which reads the prompt for a prediction of the answer."""
    return {"speculative_config": config["speculative_config"] | {"prediction_tokens": 20}}


def rows(which: str, run: Callable[[Configuration], dict[str, Any]] | None = None) -> Iterator[dict[str, Any]]:
    """``which`` of ``CONFIGURATIONS``; ``run`` gives what ``tests/engine/runner.py`` writes."""
    known = CONFIGURATIONS[which]()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun = {name: pool.submit(_timed, run or engine, each) for name, each in known.items()}
        for name, each in known.items():
            row = {"method": name, "against": each.against, "requests": len(each.asked())}
            try:
                result = begun[name].result()
                row |= {"seconds": result["seconds"]} | drafts(result)
                if each.against is not None:
                    row |= compared(each, result, begun[each.against].result())
            except RuntimeError as error:
                row |= {"wrong": True, "message": str(error)}
            yield row


def drafts(result: dict[str, Any]) -> dict[str, int]:
    counted = {name.rpartition("num_")[2]: int(value) for name, value in result["counters"].items()}
    return {"drafts": counted.get("drafts", 0), "accepted": counted.get("accepted_tokens", 0)}


def compared(each: Configuration, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """How many requests have other tokens; ``wrong`` also where nothing was accepted, so that nothing was shown. The
    ``message`` has the sampling of those requests: where it is top-p without top-k alone, the cause may be vLLM's own
    (``docs/losslessness.md``, section 3)."""
    asked = list(chain.from_iterable(rounds()))
    pairs = zip(each.asked(), one["outputs"], strict=True)
    firsts = (first_difference(place, answer["ids"], other["outputs"][place]["ids"]) for place, answer in pairs)
    differences = [first for first in firsts if first is not None]
    same = len(differences) <= each.allowed
    fine = not same if each.fault else same and drafts(one)["accepted"] > 0
    told = {}
    if differences and not fine:
        kinds = dict.fromkeys(str(asked[first["request"]]["sampling"]) for first in differences)
        told = {"message": "; ".join(kinds), "first_differences": differences[:LISTED_DIFFERENCES]}
    return {"different": len(differences), "wrong": not fine, **told}


def first_difference(request: int, answer: list[int], plain: list[int]) -> dict[str, Any] | None:
    """Where an answer leaves that of plain decoding, so that the two tokens' logits can be looked at; None: nowhere."""
    for at, (token, expected) in enumerate(zip_longest(answer, plain)):
        if token != expected:
            return {"request": request, "at": at, "token": token, "plain": expected}
    return None


def _timed(run: Callable[[Configuration], dict[str, Any]], each: Configuration) -> dict[str, Any]:
    begun = time.monotonic()
    return run(each) | {"seconds": round(time.monotonic() - begun, 1)}


def engine(each: Configuration) -> dict[str, Any]:
    """Raises ``RuntimeError`` with the end of its log where an engine ends before its time."""
    from tests.engine.conftest import ROOMY

    asked = rounds()
    if each.greedy_only:
        together = list(chain.from_iterable(asked))
        asked = [[together[place] for place in each.asked()]]
    llm = ROOMY | {"gpu_memory_utilization": SHARE_OF_THE_GPU} | each.llm
    spec = {"rounds": asked, "llm": llm, "sabotage": "draw_sizes" if each.draws_sizes else each.fault}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "spec", Path(folder) / "made"
        given.write_text(json.dumps(spec))
        command = [sys.executable, str(ROOT / "tests" / "engine" / "runner.py"), str(given), str(made)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError((done.stdout + done.stderr)[-1000:])
        result: dict[str, Any] = json.loads(made.read_text())
        return result

"""Run one vLLM engine in its own process and write what it generated.

    python tests/engine/runner.py SPEC.json OUT.json

``SPEC``: ``llm`` (keyword arguments of ``vllm.LLM``), ``rounds`` (lists of ``{"ids": [...], "sampling": {...}}``, with
the folder of a LoRA adapter as ``"lora"``, what is to be embeddings as ``"embeds"``, see ``embeddings.py``, and sounds
as ``"sounds"``, see ``sounds.py``, one ``generate`` call each), ``sessions`` (``sessions.py``), ``keep_async`` (leave
asynchronous scheduling as vLLM decided it, which its CPU platform then switches off), ``sabotage`` (name of a fault in
``faults.py``), ``graphs`` (numbers of requests that the drafter's recorded graphs are for), ``record`` (file for the
inputs and outputs of the drafter's forward passes), ``ray`` (number of ranks that Ray runs on this machine's cores),
``whole_sampler`` (no batch draws by one argmax) and ``every_pass`` (no pass is recorded, and no body is in C++),
``torchvision`` (import a stand-in), ``measure_memory`` (run the models before there are caches), ``warm_up`` (as on a
GPU, ``warming.py``) and ``changes`` (of weights, between rounds, ``weights.py``).
``OUT``: token ids per request, logprobs where asked, counters, the number of verifications by nodes, what was learned
from (``counting.py``), and by round for how many batches one argmax was enough, and what was accepted.
"""

import gc
import json
import os
import sys
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

COUNTERS = (
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_accepted_tokens",
    "vllm:num_preemptions",
    "vllm:prefix_cache_hits",
    "vllm:external_prefix_cache_hits",
    "vllm:specext_swift_acceptance",
    "vllm:specext_swift_search_steps",
)


def keep_asynchronous_scheduling() -> None:
    from vllm.platforms.cpu import CpuPlatform

    stock = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        decided = vllm_config.scheduler_config.async_scheduling
        stock(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = decided

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)  # type: ignore[method-assign, assignment]


def measure_memory_first() -> None:
    """Run the models before there are caches, as GPU workers do. A CPU's worker spares itself that where it can. The
    runner is thereby loaded before the plug-in, as by programs that use it themselves."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.worker.cpu_worker import CPUWorker

    CPUWorker._should_warm_up_model = lambda self: True  # type: ignore[method-assign]


def spare_what_only_long_lives_need() -> None:
    """An engine under test lives for seconds. Of its start, a third goes into looking through all of memory thirteen
    times for garbage, and for whom of all modules names a kernel: the latter by comparing each with every one."""
    from vllm.triton_utils import dispatcher

    gc.collect = lambda generation=2: 0
    dispatcher._rebind_kernels = rebind_kernels


OWNERS = ("vllm", "tests")
"""Beginnings of the names of modules that may name a kernel of vLLM's."""


def rebind_kernels(overrides: list[tuple[Any, Any]]) -> None:
    """As vLLM's does, with one look into a table for each name, and none for what owns no kernel: others' modules and
    plain values."""
    wrappers = {id(original): wrapper for original, wrapper in overrides}
    others = {FunctionType, BuiltinFunctionType, ModuleType, str, int, float, bool, tuple, list, dict, type(None)}
    for module in [module for name, module in list(sys.modules.items()) if name.startswith(OWNERS)]:
        for name, value in list((getattr(module, "__dict__", None) or {}).items()):
            if (wrapper := wrappers.get(id(value))) is not None:
                setattr(module, name, wrapper)
                continue
            if type(value) in others:
                continue
            try:
                own = object.__getattribute__(value, "__dict__")
            except AttributeError:
                continue
            if (wrapper := wrappers.get(id(own.get("kernel")))) is not None:
                value.kernel = wrapper
                if not isinstance(value, type):
                    own.pop("_kernel_arg_names", None)


def compute_as_any_cpu_does(spec: dict[str, Any]) -> None:
    """CPUs with AMX do it otherwise. vLLM's kernel for int8 takes features in 16 bits alone, and an engine under test
    has 32. For float8 torch takes oneDNN's reference, which is hundreds of times slower. In bfloat16 vLLM packs pages,
    so that trees are refused."""
    import torch
    from vllm.model_executor.kernels.linear.scaled_mm import cpu

    cpu.check_cpu_sgl_kernel = lambda n, k, dtype: False
    if "fp8" in json.dumps(spec.get("llm")):
        torch.backends.mkldnn.set_flags(False)
    if "bfloat16" in json.dumps(spec.get("llm")):
        torch.cpu._is_amx_tile_supported = lambda: False


def let_pages_be_shared() -> None:
    """By layers with latent attention and others. vLLM's kernels for a CPU want 16 tokens a page for the former, and
    have code for as many in the latter, which vLLM never asks them for."""
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes = staticmethod(lambda kv_cache_spec=None: [MultipleOf(16)])
    CPUAttentionBackend.get_supported_kernel_block_sizes = sizes  # type: ignore[method-assign, assignment]


def stand_in_for_torchvision() -> None:
    """Here and in the process in which vLLM looks at a class of a model."""
    stand_in = str(Path(__file__).with_name("stand_ins"))
    sys.path.insert(0, stand_in)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (stand_in, os.environ.get("PYTHONPATH"))))


def run_every_pass() -> None:
    """Replay no pass as a CPU does: without the bodies in C++ it records none."""
    from vllm_specext.kernels.native import library

    os.environ[library.SWITCH] = "0"
    library.load.cache_clear()


def record_graphs(sizes: list[int]) -> None:
    """Draft in CUDA graphs, as far as a CPU can have them."""
    from tests.engine.recorded_graphs import install

    install(sizes, replays)


replays: list[Any] = []
"""What ran of them."""


def sampling_params(values: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if "structured_outputs" in values:
        values = values | {"structured_outputs": StructuredOutputsParams(**values["structured_outputs"])}
    if "logit_bias" in values:
        values = values | {"logit_bias": {int(token): bias for token, bias in values["logit_bias"].items()}}
    return SamplingParams(**values)


def adapter(folder: str | None) -> Any:
    from vllm.lora.request import LoRARequest

    return folder and LoRARequest("adapter", 1, folder)


def by_token(rows: Any) -> list[dict[int, float]]:
    return [{token: entry.logprob for token, entry in (row or {}).items()} for row in rows or []]


def shortened(llm: Any) -> int:
    """The number of layers that call the wheel's own kernels, in the target and in a drafter; 0 where the models are in
    other processes."""
    from vllm_specext.cpu_runner import eager_layers

    runner = model_runner(llm)
    models = (getattr(runner, "model", None), getattr(getattr(runner, "speculator", None), "model", None))
    modules = [module for model in models if model is not None for module in model.modules()]
    ways = [vars(module).get("forward") or vars(module).get("_forward_method") for module in modules]
    return sum(getattr(way, "__module__", None) == eager_layers.__name__ for way in ways)


def recorded(llm: Any) -> dict[str, int]:
    """The number of passes of the target and of a drafter that were recorded and are replayed; none where they are in
    other processes."""
    runner = model_runner(llm)
    target = getattr(getattr(runner, "model", None), "forward", None)
    drafts = getattr(getattr(runner, "speculator", None), "draft_graphs", None)
    return {
        "target": sum(one.checked for one in getattr(target, "_recorded", {}).values()),
        "drafts": len(getattr(drafts, "_recordings", {})),
    }


def model_runner(llm: Any) -> Any:
    """``None`` where it is in another process."""
    worker = getattr(llm.llm_engine.model_executor, "driver_worker", None)
    return getattr(getattr(worker, "worker", None), "model_runner", None)


def replace_in_vllm(spec: dict[str, Any]) -> None:
    sys.path.append(str(Path(__file__).parents[2]))
    from tests.engine import counting, weights

    spare_what_only_long_lives_need()
    compute_as_any_cpu_does(spec)
    if "CPU_MLA" in json.dumps(spec.get("llm")):
        let_pages_be_shared()
    if spec.get("torchvision"):
        stand_in_for_torchvision()
    if spec.get("measure_memory"):
        measure_memory_first()
    if spec.get("keep_async"):
        keep_asynchronous_scheduling()
    if spec.get("graphs") or spec.get("record") or spec.get("every_pass"):
        run_every_pass()
    if spec.get("graphs"):
        record_graphs(spec["graphs"])
    weights.prepare(spec.get("changes", []))
    if spec.get("sabotage"):
        from tests.engine import faults

        getattr(faults, spec["sabotage"])()
    counting.count_greedy_draws(never=spec.get("whole_sampler", False))
    counting.count_learned_trees()
    counting.count_depths()


def main(spec_path: str, out_path: str) -> None:
    spec = json.loads(Path(spec_path).read_text())
    replace_in_vllm(spec)
    if spec.get("ray"):
        from tests.engine import ray_workers

        ray_workers.start(spec["ray"], spec_path)
    from vllm import LLM

    from tests.engine import sessions, sounds, warming, weights
    from tests.engine.counting import accepted_so_far, cache_groups, depths, draws, learned
    from tests.engine.embeddings import prompt
    from vllm_specext.plugin import register

    register()  # also where no entry point announces the package
    llm = LLM(disable_log_stats=False, **spec["llm"])
    if spec.get("record"):
        from tests.engine.recorded_passes import record_drafter

        record_drafter(spec["llm"]["speculative_config"]["method"], model_runner(llm).speculator, spec["record"])
    if spec.get("warm_up"):
        warming.warm_up(llm)
    outputs, draws_by_round, accepted_by_round = [], [], []
    for place, requests in enumerate(spec["rounds"]):
        weights.change_before(place, spec.get("changes", []), llm, model_runner(llm))
        draws.update(argmax=0, sampler=0)
        prompts = [sounds.prompt(one["ids"], one["sounds"]) if "sounds" in one else prompt(one) for one in requests]
        params = [sampling_params(request["sampling"]) for request in requests]
        adapters = [adapter(request.get("lora")) for request in requests]
        for done in llm.generate(prompts, params, lora_request=adapters, use_tqdm=False):
            completion = done.outputs[0]
            outputs.append(
                {
                    "ids": list(completion.token_ids),
                    "logprobs": by_token(completion.logprobs),
                    "prompt_logprobs": by_token(done.prompt_logprobs),
                    "reason": completion.finish_reason,
                }
            )
        draws_by_round.append(dict(draws))
        accepted_by_round.append(accepted_so_far(llm, accepted_by_round))
    outputs += sessions.run(llm, spec.get("sessions", []), sampling_params)
    metrics = llm.get_metrics()
    counters = {m.name: m.value for m in metrics if m.name in COUNTERS}
    sizes = {m.labels["nodes"]: m.value for m in metrics if m.name == "vllm:specext_num_verifications"}
    engine = llm.llm_engine.vllm_config
    Path(out_path).write_text(
        json.dumps(
            {
                "outputs": outputs,
                "counters": counters,
                "sizes": sizes,
                "replays": replays,
                "draws": draws_by_round,
                "accepted": accepted_by_round,
                "learned": learned,
                "depths": depths,
                "v2": engine.use_v2_model_runner,
                "async": engine.scheduler_config.async_scheduling,
                "shortened": shortened(llm),
                "recorded": recorded(llm),
                "cache_groups": cache_groups(llm),
            }
        )
    )


if __name__ == "__mp_main__":  # the process of a tensor-parallel rank
    replace_in_vllm(json.loads(Path(sys.argv[1]).read_text()))
if __name__ == "__main__":
    main(*sys.argv[1:])

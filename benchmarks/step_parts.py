"""What a step of the engine consists of: the functions whose time is taken, and which engines call them."""

from typing import Any

from benchmarks.stopwatch import Watched

TREES, VLLM_DRAFTS, GRIFFIN, MOA, GROWS = (
    frozenset({name}) for name in ("trees", "vLLM drafts", "griffin", "moa", "grows")
)

_RUNNER = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_TREES = "vllm_specext.engine.verification"
_GROWTH = "vllm_specext.engine.drafting.growth"
_GROWER = "vllm_specext.engine.drafting.tree_grower:TreeGrower.__call__"
_GRIFFIN = "vllm_specext.engine.drafting.tree_speculator"
_MOA, _MOA_MODEL = "vllm_specext.methods.moa.speculator", "vllm_specext.methods.moa.serving"
_VLLMS_SPECULATOR = "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator:TargetDependentARSpeculator"
_EXPANSION = "vllm_specext.tree.expansion:Expansion"

FUNCTIONS = (
    Watched("scheduler", f"{_SCHEDULER}.schedule"),
    Watched("scheduler", f"{_SCHEDULER}.update_from_output"),
    Watched("inputs", f"{_RUNNER}.prepare_inputs"),
    Watched("inputs", f"{_RUNNER}.prepare_attn"),
    Watched("tree layout", f"{_TREES}.tree_states:TreeStates.lay_out", TREES),
    Watched("tree layout", f"{_TREES}.tree_steps:TreeSteps.begin", TREES),
    Watched("target", f"{_RUNNER}.execute_model"),
    # The target's; a drafter's own is part of its passes.
    Watched("tree attention", "vllm_specext.engine.verification.attention:tree_attention", TREES, within="target"),
    Watched("sampling and walk", f"{_RUNNER}.sample"),
    Watched("KV compaction", f"{_TREES}.tree_steps:TreeSteps.accept", TREES),
    Watched("first pass", f"{_VLLMS_SPECULATOR}.propose", VLLM_DRAFTS),
    Watched("first pass", f"{_GRIFFIN}:TreeSpeculator._read_paths", GRIFFIN | TREES),
    Watched("levels", _GROWER, GRIFFIN | TREES),
    Watched("gather", "vllm_specext.methods.moa.target_cache:gather", MOA),
    Watched("LSA, keys and values", f"{_MOA_MODEL}:MoAForCausalLM.keys_values", MOA),
    Watched("keeping them", f"{_MOA}:MoASpeculator._write_kv", MOA),
    Watched("self-attention", f"{_MOA_MODEL}:CachedLayer.forward", MOA, given=(("writes", True),)),
    Watched("cross-attention", f"{_MOA_MODEL}:CachedLayer.forward", MOA, given=(("writes", False),)),
    Watched("growth, rest", _GROWER, MOA),
    Watched("head", "vllm_specext.methods.griffin.serving:GriffinForCausalLM.compute_logits", GRIFFIN),
    Watched("head", f"{_MOA_MODEL}:MoAForCausalLM.compute_logits", MOA),
    Watched("head", f"{_GRIFFIN}:best_tokens", GRIFFIN | TREES),
    Watched("head", f"{_MOA}:best_tokens", MOA),
    Watched("expansion", f"{_GROWTH}:expansion", GROWS),
    Watched("expansion", f"{_EXPANSION}.grow", GROWS),
    Watched("expansion", f"{_EXPANSION}.tree", GROWS),
    Watched("expansion", f"{_TREES}.tree_states:TreeStates.write", TREES),
    Watched("drafter, other", f"{_GRIFFIN}:TreeSpeculator.draft", GRIFFIN),
    Watched("drafter, other", f"{_MOA}:MoASpeculator.draft", MOA),
)
PARTS = tuple(dict.fromkeys(function.part for function in FUNCTIONS))


def does(speculative: dict[str, Any] | None) -> frozenset[str]:
    """What an engine with this ``speculative_config``, which has to name a tree's width, does in its steps."""
    if speculative is None:
        return frozenset()
    traits = {speculative["method"]}
    if speculative.get("tree_top_k", 1) > 1:
        traits |= TREES
    if "moa" in traits or {"griffin", "trees"} <= traits:
        traits |= GROWS
    else:
        traits |= VLLM_DRAFTS
    return frozenset(traits)


def functions_of(speculative: dict[str, Any] | None) -> list[Watched]:
    """Those that such an engine calls."""
    return [function for function in FUNCTIONS if function.needs <= does(speculative)]

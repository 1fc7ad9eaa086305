"""The facts about a server: what vLLM picks on this machine, for ``vllm-specext doctor``, and the start-up log of an
engine with one of our methods, one line per fact."""

from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.attention.selector import get_attn_backend
from vllm.version import __version__ as vllm_version

import vllm_specext
from vllm_specext.declaration import Keeps, Reads
from vllm_specext.engine.requests import has_custom_processors
from vllm_specext.kernels.native.library import load
from vllm_specext.tree.budget import describe
from vllm_specext.tree.draft_size import depths_of

logger = init_logger(f"vllm.{__name__}")

Line = tuple[str, str]
"""The fact's name and what it is."""


def facts() -> dict[str, str]:
    """Platform, devices, model runner, and the attention backend for a Llama of 128-wide heads in bfloat16."""
    rows = {"platform": current_platform.device_name or "none"}
    if torch.cuda.is_available():
        rows["devices"] = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    config = VllmConfig()
    rows["model runner without our methods"] = "V2" if config.use_v2_model_runner else "V1"
    rows["model runner with our methods"] = "V2"
    with set_current_vllm_config(config):
        backend = get_attn_backend(head_size=128, dtype=torch.bfloat16, kv_cache_dtype="auto")
    rows["attention backend"] = str(backend.get_name())
    if current_platform.is_cpu():
        kernels = load()
        rows["kernels in C++"] = f"no: {kernels}" if isinstance(kernels, str) else "yes"
    return rows


def log_start(runner: Any) -> None:
    """Say once, by rank 0, with which drafts vLLM's model ``runner`` will serve; its caches have been laid out."""
    if runner.parallel_config.rank:
        return
    for name, fact in (*configured(runner.vllm_config), *laid_out(runner)):
        logger.info("%s: %s", name, fact)


def configured(vllm_config: Any) -> list[Line]:
    """The facts that the configuration alone gives."""
    config = vllm_config.speculative_config
    drafter = str(config.model or ("the target itself" if config.declared.reads is Reads.LAYERS else "none"))
    if not any(config.sizes):
        drafts, depth = "none", 0
    elif config.tree is None:
        drafts, depth = f"chains of at most {config.num_speculative_tokens} tokens", config.num_speculative_tokens
    else:
        shape, depth = config.tree, config.tree.depth
        drafts = f"trees of at most {shape.nodes} nodes, depth {shape.depth}, top-k {shape.top_k}"
        if has_custom_processors(vllm_config.model_config):
            drafts = f"chains of at most {shape.depth} tokens, and no trees, because custom logits processors are there"
    lines = [
        ("vllm-specext", f"{vllm_specext.__version__} with vLLM {vllm_version}"),
        ("Speculative method", config.method),
        ("Drafter", drafter),
        ("Drafts", drafts),
    ]
    if (predicted := config.options.predicted) is not None and predicted.prompt:
        lines.append(("Looked up in a request's text", f"at most {predicted.tokens} tokens"))
    if config.draft_vocabulary is not None:
        tokens = vllm_config.model_config.get_vocab_size()
        lines.append(("Drafted from", f"{len(config.draft_vocabulary)} of the target's {tokens} tokens"))
    if config.adapts:
        sizes = ", ".join(map(str, config.sizes))
        lines.append(("Drafted tokens", f"one of {sizes}, as is measured to be fastest at the load"))
        if config.any_depth:
            depths = ", ".join(map(str, depths_of(config.tree)))
            lines.append(("Levels of large trees", f"one of {depths}, likewise"))
        lines.append(("Most drafted tokens by number of running requests", describe(config.schedule, depth)))
    elif schedule := config.num_speculative_tokens_per_batch_size:
        lines.append(("Drafted tokens by number of running requests", describe(schedule, depth)))
    else:
        lines.append(("Drafted tokens by number of running requests", f"any: {config.num_speculative_tokens}"))
    drawn = config.options.samples_drafts
    verifier = "vLLM's rejection sampler, with the drafts' probabilities" if drawn else "the target's own sampler"
    lines.append(("Verification", verifier))
    return lines


def laid_out(runner: Any) -> list[Line]:
    """The facts about memory and CUDA graphs, which are known once the caches have been laid out."""
    return [memory_line(runner), ("CUDA graphs of drafts", graphs(runner.speculator))]


def memory_line(runner: Any) -> Line:
    longest = runner.max_model_len
    keeps = runner.vllm_config.speculative_config.declared.keeps
    if keeps is Keeps.APART:
        cache = runner.speculator.drafter.cache
        size, total = cache.page_bytes // cache.page_size, cache.kv_cache_config.num_blocks * cache.page_bytes
        whole = f"{mebibytes(total)} for all requests; {per_request(size, min(longest, cache.max_len))}"
        return ("Drafter's own cache", whole)
    drafters = set(getattr(runner.speculator, "draft_attn_layer_names", ()))
    sizes = {name: spec.page_size_bytes // spec.block_size for name, spec in runner.get_kv_cache_spec().items()}
    own = sum(size for name, size in sizes.items() if name in drafters)
    target = sum(sizes.values()) - own
    if keeps is not Keeps.BESIDE_THE_TARGETS or own == 0:
        uses = "" if keeps is Keeps.NOWHERE else "; it uses the target's"
        return ("Drafter's keys and values", f"none{uses}")
    return ("Drafter's keys and values", f"{per_request(own, longest)}; the target's take {target} bytes a token")


def per_request(size: int, longest: int) -> str:
    return f"{size} bytes a token, {mebibytes(size * longest)} for a request of {longest} tokens"


def mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def graphs(speculator: Any) -> str:
    """Numbers of requests for which the drafter's passes are captured whole; what is captured in pieces has none."""
    managers = [value for value in vars(speculator).values() if hasattr(value, "_capture_descs")]
    captured = [desc for each in managers for descs in each._capture_descs.values() for desc in descs]
    sizes = {desc.num_reqs for desc in captured if desc.num_reqs is not None}
    return f"for {', '.join(map(str, sorted(sizes)))} requests" if sizes else "none"

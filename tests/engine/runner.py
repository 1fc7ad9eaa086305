"""Run one vLLM engine in its own process and write what it generated.

    python tests/engine/runner.py SPEC.json OUT.json

``SPEC``: ``llm`` (keyword arguments of ``vllm.LLM``), ``rounds`` (lists of ``{"ids": [...], "sampling": {...}}``, one
``generate`` call each), ``keep_async`` (leave asynchronous scheduling as vLLM decided it, which its CPU platform then
switches off), ``sabotage`` (name of a deliberate fault in this file, for the negative controls) and ``record`` (file
for the inputs and outputs of the drafter's forward passes). ``OUT``: token ids per request, logprobs where asked, and
counters.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

COUNTERS = (
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_accepted_tokens",
    "vllm:num_preemptions",
    "vllm:prefix_cache_hits",
)


def keep_asynchronous_scheduling() -> None:
    from vllm.platforms.cpu import CpuPlatform

    stock = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        decided = vllm_config.scheduler_config.async_scheduling
        stock(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = decided

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)  # type: ignore[method-assign, assignment]


def shift_target_positions() -> None:
    """The target turns its queries and keys by one position too many wherever it verifies drafted tokens."""
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState

    stock = DefaultModelState.preprocess_state

    def preprocess_state(self: Any, input_batch: Any, *args: Any) -> None:
        stock(self, input_batch, *args)
        if input_batch.num_draft_tokens:
            rows = input_batch.logits_indices[input_batch.expanded_local_pos > 0]
            input_batch.positions[rows] += 1

    DefaultModelState.preprocess_state = preprocess_state  # type: ignore[method-assign]


def accept_every_draft() -> None:
    """Verification believes the drafter."""
    import torch

    import vllm_specext.engine.verification as verification

    stock = verification.accept_chain

    def accept_chain(drawn: Any, drafted: Any, cu_num_logits: Any, width: int) -> Any:
        rows = torch.arange(len(drawn))
        rows = rows[~torch.isin(rows + 1, cu_num_logits)]  # those that a drafted row of the same request follows
        rows = rows[drafted[rows + 1] >= 0]
        drawn = drawn.index_copy(0, rows, drafted[rows + 1].to(drawn.dtype))
        return stock(drawn, drafted, cu_num_logits, width)

    verification.accept_chain = accept_chain  # type: ignore[assignment]


def record_drafter(path: str) -> None:
    """Write inputs and outputs of the drafter's passes from the first request on; the passes before it are warm-up."""
    import torch

    from vllm_specext.methods.griffin.serving import GriffinForCausalLM

    stock = GriffinForCausalLM.forward
    passes: list[dict[str, Any]] = []

    def forward(self: Any, input_ids: Any, positions: Any, hidden_states: Any, inputs_embeds: Any = None) -> Any:
        inputs = {"ids": input_ids.clone(), "positions": positions.clone(), "features": hidden_states.clone()}
        predict, regress = stock(self, input_ids, positions, hidden_states)
        passes.append(inputs | {"predict": predict.clone(), "regress": regress.clone()})
        torch.save(passes, path)
        return predict, regress

    GriffinForCausalLM.forward = forward  # type: ignore[method-assign]


def main(spec_path: str, out_path: str) -> None:
    spec = json.loads(Path(spec_path).read_text())
    if spec.get("keep_async"):
        keep_asynchronous_scheduling()
    if spec.get("sabotage"):
        globals()[spec["sabotage"]]()
    from vllm import LLM, SamplingParams

    llm = LLM(disable_log_stats=False, **spec["llm"])
    if spec.get("record"):
        record_drafter(spec["record"])
    outputs = []
    for requests in spec["rounds"]:
        prompts = [{"prompt_token_ids": request["ids"]} for request in requests]
        for done in llm.generate(prompts, [SamplingParams(**r["sampling"]) for r in requests], use_tqdm=False):
            completion = done.outputs[0]
            logprobs = [{i: p.logprob for i, p in row.items()} for row in completion.logprobs or []]
            outputs.append(
                {"ids": list(completion.token_ids), "logprobs": logprobs, "reason": completion.finish_reason}
            )
    counters = {m.name: m.value for m in llm.get_metrics() if m.name in COUNTERS}
    engine = llm.llm_engine.vllm_config
    Path(out_path).write_text(
        json.dumps(
            {
                "outputs": outputs,
                "counters": counters,
                "v2": engine.use_v2_model_runner,
                "async": engine.scheduler_config.async_scheduling,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Two engines on this machine, one of which reads prompts and one of which goes on from there, with vLLM's NIXL
connector between them.

    python -m tests.engine.disaggregated SPEC.json OUT.json

``SPEC``: ``prefill`` and ``decode`` (keyword arguments of ``vllm.LLM``), ``requests`` (as the runner's) and
``keep_async``, as the runner's, and ``policy``, what the second engine does after a load has failed. ``OUT``:
``outputs`` (token ids per request), ``first`` (the token of each that the first engine gave), ``counters`` of the
second, and ``drafts`` of the first.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from vllm_specext.measure.server import free_port

READ_FOR_OTHERS = {"do_remote_decode": True, "do_remote_prefill": False}


def engine(llm: dict[str, Any], role: str, port: int, spec: dict[str, Any]) -> Any:
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(port)
    from tests.engine.connectors import connector
    from tests.engine.runner import replace_in_vllm

    replace_in_vllm({"llm": llm, "keep_async": spec["keep_async"]})
    from vllm import LLM

    from vllm_specext.plugin import register

    register()
    between = connector("NixlConnector", {}) | {"kv_role": role, "kv_buffer_device": "cpu"}
    between |= {"kv_load_failure_policy": spec["policy"]}
    return LLM(disable_log_stats=False, kv_transfer_config=between, **llm)


def generate(llm: Any, requests: list[dict[str, Any]], transfers: list[Any], **changes: Any) -> list[Any]:
    from tests.engine.runner import sampling_params

    sampling = []
    for one, transfer in zip(requests, transfers, strict=True):
        extra = one["sampling"].get("extra_args", {}) | {"kv_transfer_params": transfer}
        sampling.append(sampling_params(one["sampling"] | changes | {"extra_args": extra}))
    prompts = [{"prompt_token_ids": one["ids"]} for one in requests]
    answers: list[Any] = llm.generate(prompts, sampling, use_tqdm=False)
    return answers


def counters(llm: Any) -> dict[str, float]:
    return {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}


def read_prompts(spec: dict[str, Any], pipe: Any) -> None:
    llm = engine(spec["prefill"], "kv_producer", free_port(), spec)
    asked = spec["requests"]
    answers = generate(llm, asked, [READ_FOR_OTHERS] * len(asked), max_tokens=1, min_tokens=0)
    first = [list(answer.outputs[0].token_ids) for answer in answers]
    drafts = counters(llm).get("vllm:spec_decode_num_drafts", 0)
    pipe.send({"first": first, "transfers": [answer.kv_transfer_params for answer in answers], "drafts": drafts})
    pipe.recv()  # what it has read is its own until the other has it


def main(spec_path: str, out_path: str) -> None:
    spec = json.loads(Path(spec_path).read_text())
    spawned = multiprocessing.get_context("spawn")
    here, there = spawned.Pipe()
    reader = spawned.Process(target=read_prompts, args=(spec, there))
    reader.start()
    there.close()
    found = here.recv()
    llm = engine(spec["decode"], "kv_consumer", free_port(), spec)
    answers = generate(llm, spec["requests"], found.pop("transfers"))
    outputs = [{"ids": list(answer.outputs[0].token_ids)} for answer in answers]
    Path(out_path).write_text(json.dumps(found | {"outputs": outputs, "counters": counters(llm)}))
    here.send(None)
    reader.join()


def run(**spec: Any) -> dict[str, Any]:
    """``OUT`` of a run, in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "spec.json"), Path(folder, "out.json")
        files[0].write_text(json.dumps({"keep_async": True, "policy": "fail"} | spec))
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
        command = [sys.executable, "-m", __name__, *map(str, files)]
        root = Path(__file__).parents[2]
        done = subprocess.run(
            command, env=environment, cwd=root, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        out: dict[str, Any] = json.loads(files[1].read_text())
        return out


if __name__ == "__main__":
    main(*sys.argv[1:])

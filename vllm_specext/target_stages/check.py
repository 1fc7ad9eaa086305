"""The last stage, ``python -m vllm_specext.target_stages.check RUN``: the exported drafter on an engine.

Held-out prompts are answered without drafts and with chains of the drafter, greedily. The tokens have to be the same,
and the engine has to accept as many at each depth as simulated chains on the same answers say.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import on_gpu
from vllm_specext.measure.engine_process import EngineProcess
from vllm_specext.measure.turns import Turn
from vllm_specext.methods.checkpoints import read_object
from vllm_specext.target_stages.held_out import Asked, Expected, choose, expected
from vllm_specext.target_stages.read_states import ROWS
from vllm_specext.target_stages.verdict import Conditions, Simulated, judge
from vllm_specext.training.data.folder import read_data, read_stats
from vllm_specext.training.data.template import load_template
from vllm_specext.training.pipeline.chains import Answered, accepted_by_depth
from vllm_specext.training.pipeline.export import ACCEPTANCE, read_log
from vllm_specext.training.pipeline.folder import CHECK, CHECKED, DATA, DRAFTER, FAILED_CHECK, LOGS, write_json
from vllm_specext.training.pipeline.launcher import module_command, run_process
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.record import Record, read_record
from vllm_specext.training.pipeline.report import write_report
from vllm_specext.training.pipeline.stage_process import Say, end_on_sigterm, run_stage
from vllm_specext.training.pipeline.target import read_target, sees_or_hears
from vllm_specext.training.pipeline.text_rows import text_row
from vllm_specext.training.pipeline.train import this_device
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.shard_rows import ShardRows, find_shards

AT_ONCE = 16
"""Prompts that are answered at the same time."""


def work(folder: Path, say: Say) -> None:
    end_on_sigterm()
    record = read_record(folder)
    chain = record.settings.recipe.chain
    asked = choose(read_data(folder / DATA, "valid"), record.settings.max_length, chain)
    template = load_template(record.settings.target, record.settings.template_flags)
    say(f"{len(asked.prompts)} held-out prompts, answered without drafts")
    plain = answer(folder, record, asked, longer=chain + 1)
    answers = expected(asked, plain.tokens, template.stop_ids)
    say("the same answers, with drafts")
    drafted = answer(folder, record, asked.of(answers), chain)
    say("the same answers, with simulated drafts")
    texts = with_states(folder, record, answers)
    stats = read_stats(folder / DATA)
    same_template = stats["template"]["sha256"] == template.record()["sha256"]
    found = judge(
        [one.answer for one in answers],
        drafted,
        simulate(folder, record, texts, torch.float32),
        None if record.settings.dtype == "float32" else simulate(folder, record, texts, torch.bfloat16),
        Conditions(record.settings.dtype, same_template, template.flags),
    )
    write_json(folder / CHECK, found)
    known = read_object(folder / DRAFTER / ACCEPTANCE)
    write_json(folder / DRAFTER / ACCEPTANCE, {**known, "check": found})
    write_report(folder, read_log(folder), found, stats)
    for line in found["remarks"]:
        say(line)
    if found["refused"]:
        (folder / CHECK).rename(folder / FAILED_CHECK)
        raise ConfigurationError(found["refused"])


def answer(folder: Path, record: Record, asked: Asked, chain: int = 0, longer: int = 0) -> Turn:
    """Greedy answers, drafted in chains of ``chain`` tokens; without drafts, which is 0, they go on after their ends,
    and are ``longer``."""
    settings, drafter = record.settings, folder / DRAFTER if chain else None
    arguments = [
        # A drafter is loaded as `vllm serve DRAFTER` does: its config.json names the target.
        f"--model={settings.target if drafter is None else drafter}",
        f"--dtype={settings.dtype}",
        f"--max-model-len={settings.max_length + 1}",
        f"--max-num-seqs={AT_ONCE}",
        f"--tensor-parallel-size={settings.tensor_parallel}",
        "--no-enable-prefix-caching",
        *(["--language-model-only"] if sees_or_hears(read_target(settings.target).config) else []),
        *([] if on_gpu() else ["--enforce-eager", f"--kv-cache-memory-bytes={2**29}"]),
    ]
    speculative: dict[str, Any] | None = None
    if drafter is not None:
        chains = {"num_speculative_tokens": chain, "tree_top_k": 1, "adaptive_drafts": False}
        speculative = {"method": TRAINABLE[settings.method].serves, "model": str(drafter), **chains}
    name = "plain" if drafter is None else "drafted"
    with EngineProcess(name, arguments, speculative, folder / LOGS / f"check_{name}.log") as engine:
        return engine.turn(asked.prompts, asked.tokens + longer, AT_ONCE, ignore_eos=drafter is None)


def with_states(folder: Path, record: Record, answers: Sequence[Expected]) -> list[Answered]:
    """The answers, with what the drafter reads of them."""
    method = TRAINABLE[record.settings.method]
    rows = [(one.prompt + one.longer, [False] * len(one.prompt) + [True] * len(one.longer)) for one in answers]
    read = [text_row(*row) for row in rows] if method.captured is None else captured(folder, record, rows)
    states = {tuple(row.token_ids.tolist()): method.states(row) for row in read}
    return [
        Answered(torch.tensor(ids), states[tuple(ids)], len(one.prompt), len(one.prompt) + len(one.answer) - 1)
        for one in answers
        for ids in [one.prompt + one.longer]
    ]


def captured(folder: Path, record: Record, rows: Sequence[tuple[list[int], list[bool]]]) -> list[FeatureRow]:
    """``rows``, token ids and loss mask of each, with the target's hidden states, by another engine."""
    place = folder / CHECKED
    shutil.rmtree(place, ignore_errors=True)  # of a check that was interrupted
    place.mkdir()
    (place / ROWS).write_text(json.dumps(rows), encoding="utf-8")
    command = [*module_command("vllm_specext.target_stages.read_states", folder), str(place)]
    ended = run_process(command, folder / LOGS / "check_states.log", lambda _: None)
    if ended.status:
        why = f"the target did not read its answers; {LOGS}/check_states.log says why."
        raise ConfigurationError(ended.sentence or why)
    shards = ShardRows(find_shards(place, record.target_hash), seed=0)
    read = shards.read(range(len(shards.lengths)))
    shutil.rmtree(place)
    return read


def simulate(folder: Path, record: Record, texts: Sequence[Answered], dtype: torch.dtype) -> Simulated:
    """Chains of the exported weights, in numbers of ``dtype``."""
    device, settings = this_device(), record.settings
    target, bfloat16 = read_target(settings.target, weights=True), dtype is torch.bfloat16
    drafter = TRAINABLE[settings.method].load(folder / DRAFTER, target, device, bfloat16=bfloat16)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
        verifications, depths = accepted_by_depth(drafter.draft, texts, settings.recipe.chain)
    return Simulated(verifications, depths.tolist())


if __name__ == "__main__":
    run_stage(work)

"""The plan as a table."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

from vllm_specext.training.pipeline.plan import GB, SHARE_OF_PEAK, Plan


def plan_table(plan: Plan, processes: int) -> Table:
    table = Table(title="what this training takes, at most", box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column("what", no_wrap=True)
    table.add_column("how much", justify="right", no_wrap=True)
    table.add_column("why")
    for row in rows(plan, processes):
        table.add_row(*row)
    return table


def rows(plan: Plan, processes: int) -> list[tuple[str, str, str]]:
    tokens, memory = plan.tokens, plan.memory
    passes = ", ".join(f"{each / GB:.3g}" for each in plan.operations_per_token)
    found = [
        ("features", f"{plan.feature_bytes_per_token} B", _kept(plan)),
        ("tokens", _count(tokens.stored), f"bounded by {tokens.bound}"),
        ("features on disk", _gigabytes(plan.feature_bytes), f"{_gigabytes(plan.disk_free)} are free"),
        ("trained numbers", _count(plan.trained_parameters), "of the drafter, without the embedding"),
        ("memory, training", _gigabytes(memory.total), f"in each of {processes} processes, estimated:"),
        ("  weights, AdamW", _gigabytes(memory.weights), "16 bytes for each trained number"),
        (f"  {plan.in_memory}", _gigabytes(memory.frozen), "frozen"),
        ("  activations", _gigabytes(memory.activations), f"of {plan.step_tokens} tokens in a step, all passes"),
        ("  inputs", _gigabytes(memory.batches), "made of the target for all packs of a step"),
        ("  logits", _gigabytes(memory.head), "of 1024 positions"),
        ("GFLOP per token", passes, "of training, in each stage"),
    ]
    if plan.target_operations_per_token is not None:
        forward = f"{plan.target_operations_per_token / GB:.3g}"
        often = "once, and once more in every epoch" if plan.streamed else "once"
        found.append(("GFLOP per token", forward, f"of the target, {often}; the time of its answers is not estimated"))
    if plan.steps is not None:
        found.append(("steps", " + ".join(map(str, plan.steps)), "of each stage"))
    for gpu, time in (plan.hours or {}).items():
        found.append((f"{gpu} hours", f"{time:.2g}", f"of training, at {SHARE_OF_PEAK:.0%} of its peak; not measured"))
    return found


def _kept(plan: Plan) -> str:
    if plan.captured is None:
        return "none are kept: the target runs while the drafter is trained"
    return f"per token: {plan.captured}, in bfloat16"


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _gigabytes(number: int | None) -> str:
    return "unknown" if number is None else f"{number / GB:,.3f} GB"

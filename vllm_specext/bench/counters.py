"""What a server or an engine has counted about drafts, of our methods and of vLLM's own alike."""

from collections.abc import Iterable
from typing import Any

from vllm_specext.demo.run import Speculation, counted

OURS, VLLM = "vllm:specext_num_", "vllm:spec_decode_num_"


def speculation(samples: Iterable[Any]) -> Speculation:
    """From Prometheus' samples or ``LLM.get_metrics()``: our own counters where there are any, else vLLM's, whose
    position in a chain is its depth; all 0 without drafts."""
    found = list(samples)
    if any(sample.name.startswith(OURS) for sample in found):
        return counted(found)
    counts = {"drafts": 0.0, "draft_tokens": 0.0}
    depths: dict[int, float] = {}
    for sample in found:
        name = sample.name.removesuffix("_total").removeprefix(VLLM)
        if name in counts:
            counts[name] += sample.value
        elif name == "accepted_tokens_per_pos":
            # A list from an engine, a sample with a label for each position from a server.
            values = getattr(sample, "values", None)
            depths |= dict(enumerate(values)) if values is not None else {int(sample.labels["position"]): sample.value}
    accepted = tuple(depths[depth] for depth in sorted(depths))
    return Speculation(counts["drafts"], counts["draft_tokens"], accepted)


def vllm_keys(told: Speculation) -> dict[str, Any]:
    """As ``vllm bench serve`` names and counts them; a drafted token of a tree is a node, its position its depth."""
    if not told.verifications:
        return {}
    accepted = sum(told.accepted)
    return {
        "spec_decode_acceptance_rate": round(100 * accepted / told.nodes, 2) if told.nodes else 0.0,
        "spec_decode_acceptance_length": told.acceptance_length,
        "spec_decode_num_drafts": int(told.verifications),
        "spec_decode_draft_tokens": int(told.nodes),
        "spec_decode_accepted_tokens": int(accepted),
        "spec_decode_per_position_acceptance_rates": [told.per_verification(count) for count in told.accepted],
    }

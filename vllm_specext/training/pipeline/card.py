"""The drafter's ``README.md``, a model card: what hubs read of it at the top, then what people need to know."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from vllm_specext.training.pipeline.record import Record

LICENCE = "unknown"
"""What a card says where no ``--licence`` was given."""
TEMPERATURES = "greedy; other temperatures, tasks and trees have not been measured"


def card(
    title: str,
    record: Record,
    versions: Mapping[str, str],
    stats: Mapping[str, Any],
    simulated: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> str:
    """``title`` is what people call the method."""
    settings = record.settings
    header = {
        "base_model": settings.target,
        "library_name": "vllm-specext",
        "license": settings.licence or LICENCE,
        "tags": ["speculative-decoding", "vllm", settings.method],
    }
    hours = sum(seconds.get(stage, 0.0) for stage in ("prepare", "train")) / 3600
    changed = settings.recipe.model_dump(mode="json", exclude_defaults=True)
    template = stats["template"]
    return "\n".join(
        [
            "---",
            # JSON is YAML too, and quotes whatever a name holds.
            *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in header.items()),
            "---",
            "",
            f"# {title} drafter for {settings.target}",
            "",
            "It drafts tokens that the target then verifies: answers are the target's own, token for token. Serve it",
            "with [vllm-specext](https://github.com/vllm-specext/vllm-specext) installed beside vLLM:",
            "",
            f"    vllm serve {shlex.quote('THIS_FOLDER')}",
            "",
            "`config.json` names the target and the method. The drafter is of no use for any other target.",
            "",
            "## Acceptance",
            "",
            f"Simulated chains on held-out rows ({TEMPERATURES}): "
            f"{simulated['tokens_per_verification']:.2f} tokens per verification.",
            "",
            "| depth | share of verifications that accept a token there |",
            "|---|---|",
            *(f"| {depth} | {share:.3f} |" for depth, share in enumerate(simulated["accepted_per_depth"], start=1)),
            "",
            "`check.json` of the run says what an engine accepted.",
            "",
            "## Data",
            "",
            "| | rows | tokens | tokens learnt |",
            "|---|---|---|---|",
            *(
                f"| {part} | {stats[part]['rows']} | {stats[part]['tokens']} | {stats[part]['loss_tokens']} |"
                for part in ("train", "valid")
            ),
            "",
            f"Answers: {settings.answers}. Rows left out: {json.dumps(stats.get('dropped', {}))}.",
            f"Licence of the data, as given: {settings.licence or LICENCE}.",
            "",
            "## Training",
            "",
            f"* target: files with the hash `{record.target_hash[:16]}`, "
            f"chat template `{str(template['sha256'])[:16]}`, flags `{json.dumps(template['flags'])}`, "
            f"run in {settings.dtype}",
            f"* recipe: `{json.dumps(changed)}`, where it is not the default; `plan.json` has all of it",
            f"* {hours:.2g} hours of preparing and training in {record.processes} processes",
            "* " + ", ".join(f"{name} {version}" for name, version in versions.items()),
            "",
        ]
    )

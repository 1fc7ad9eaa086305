"""The report's content, from which both `NAME.md` and `NAME.html` are made."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_specext.bench.caveats import caveats
from vllm_specext.bench.results import Results, Row, baseline
from vllm_specext.bench.spread import WIDE
from vllm_specext.bench.summary import OTHER_SAMPLES, UNSURE, cells, temperatures
from vllm_specext.measure.plain import PLAIN, STOCK, WHAT_STOCK_IS

MEANING = {
    "T": "temperature: at 0 the likeliest token is taken, above it tokens are drawn, with a seed for each request",
    "same tokens": "whether every answer has exactly the tokens of plain decoding",
    "speed-up": "speed divided by that of {baseline} measured in turns with it, the median of the rounds",
    "spread": "the lowest and the highest of the rounds' speed-ups",
    "x no nodes": "speed divided by that of the same engine when it drafts nothing and the drafter only reads along",
    "tokens per verification": "tokens that a pass of the target gives: the accepted ones and its own",
    "drafted per verification": "drafted tokens that a pass of the target checks (nodes of the tree)",
    "first token, ms": "time to the first token, median",
    "further token, ms": "time per token after the first, median",
    "answer, ms": "time to the end of an answer, median",
    "runner": "vLLM's model runner, which vLLM chooses; on a CPU without Triton it is V1 but for our methods, and for "
    "plain decoding where answers are drawn",
}
SAMPLES = (
    f"; {OTHER_SAMPLES}: vLLM's own methods and drafts that are drawn are verified with other random numbers, so that "
    "above temperature 0 an answer has the same distribution and other tokens"
)
SPEEDUP_OF_LATENCY = "the time to the end of an answer of {baseline} divided by this one's, the median of the rounds"
BASELINES = {PLAIN: "plain decoding", STOCK: f"`{STOCK}` ({WHAT_STOCK_IS})"}


@dataclass(frozen=True)
class Page:
    """Sentences may have `code` and **strong** words, as in Markdown. ``pictures`` are file names by title, and
    ``meanings`` what columns say by title."""

    name: str
    title: str
    facts: str
    caveats: list[str]
    prompts: str
    command: str
    titles: list[str]
    lines: list[list[str]]
    meanings: dict[str, str]
    pictures: dict[str, str]


def page(results: Results, head: dict[str, Any], pictures: dict[str, str]) -> Page:
    titles, lines = cells(results.rows)
    said = meanings(results.rows, lines)
    return Page(
        name=results.name,
        title=title(results, head),
        facts=f"vLLM {head['vllm']}, vllm-specext {head['vllm_specext']}, torch {head['torch']}, Python "
        f"{head['python']}, {head['machine']}, {head['date']}.",
        caveats=caveats(results, head),
        prompts=prompts(results.prompts, head),
        command=head["command"],
        titles=titles,
        lines=lines,
        meanings={title: said[title] for title in titles if title in said},
        pictures=pictures,
    )


def title(results: Results, head: dict[str, Any]) -> str:
    """What was measured, on what."""
    count = len({row["method"] for row in results.rows})
    device = "a CPU" if head["device"] == "cpu" else head["device"]
    return (
        f"{results.name}: {count} configuration{'s' if count > 1 else ''} with {head['target']} on {device}, "
        f"{temperatures(results.rows)}"
    )


def prompts(counted: dict[str, Any], head: dict[str, Any]) -> str:
    by_task = ", ".join(f"{count} of {task}" for task, count in counted["counted_by_task"].items())
    left_out = [
        f"{counted[key]} left out because {why}"
        for key, why in (
            ("left_out_as_loops", "the plain answer goes round in circles, which is easy to draft"),
            ("left_out_as_too_long", "they do not fit into a sequence"),
        )
        if counted.get(key)
    ]
    asked = "; ".join([by_task, *left_out])
    return f"Prompts: {asked}. Answers of up to {head['max_tokens']} tokens, {head['sampling']}."


def meanings(rows: Sequence[Row], lines: Sequence[Sequence[str]]) -> dict[str, str]:
    """What each column says, by its title."""
    said = MEANING | ({"speed-up": SPEEDUP_OF_LATENCY} if "request_rate" in rows[0] else {})
    said["speed-up"] = said["speed-up"].format(baseline=BASELINES[baseline(rows)])
    if any(cell.startswith(UNSURE) for one in lines for cell in one):
        said["speed-up"] += (
            f"; {UNSURE}: no result, because the rounds differ by more than {WIDE:.0%} of it, or are one"
        )
    if any(OTHER_SAMPLES in one for one in lines):
        said["same tokens"] += SAMPLES
    return said


def markdown(content: Page) -> str:
    table = [content.titles, ["---"] * len(content.titles), *content.lines]
    parts = [
        f"# {content.title}",
        content.facts,
        "\n".join(f"> * {sentence}" for sentence in content.caveats),
        content.prompts,
        f"```\n{content.command}\n```",
        "\n".join("| " + " | ".join(one) + " |" for one in table),
        "\n".join(f"* **{title}**: {meaning}" for title, meaning in content.meanings.items()),
        *(f"## {title}\n\n![{title}]({file})" for title, file in content.pictures.items()),
        f"All figures are in `{content.name}.json` (with vLLM's names) and, a line per measurement, in "
        f"`{content.name}.csv`. This page in one file, to be sent on: `{content.name}.html`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"

"""Write the text that the bundled drafters learn from as rows that ``vllm-specext train`` reads.

    python -m vllm_specext.demo.make_rows --work WORK

Windows of the corpus, and the target's own greedy continuations of corpus text, without loops: WORK/rows.jsonl has a
row of ``token_ids`` and ``loss_mask`` a line. Such rows are prepared already, so that no chat template is put around
them: the bundled target is served with text as it is. Continuations take about a minute for each 400 on a core, and
are kept in WORK.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor
from transformers import LlamaForCausalLM

from vllm_specext.demo.tokens import keep_corpus
from vllm_specext.demo.training_text import LENGTH, PROMPT, own_rows, windows
from vllm_specext.measure.bundled import TARGET

FILE = "rows.jsonl"
GIVEN = 24
"""Tokens of a window before the first that is learnt. Held-out ones are the prompts of the training's check."""


def lines(rows: Sequence[Tensor], given: int) -> Iterator[str]:
    """``rows`` of token ids, of which all after the first ``given`` tokens are learnt; what is no longer is left
    out."""
    for row in rows:
        if len(row) > given:
            mask = [0] * given + [1] * (len(row) - given)
            yield json.dumps({"token_ids": row.tolist(), "loss_mask": mask}) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the encoded corpus and of rows.jsonl")
    parser.add_argument("--texts", type=int, default=1800, help="rows of corpus text")
    parser.add_argument("--continuations", type=int, default=1000, help="rows of the target's own text")
    args = parser.parse_args()
    keep_corpus(args.work)
    target = LlamaForCausalLM.from_pretrained(TARGET).float().eval().requires_grad_(False)
    texts = list(windows(args.work / "train.npy", args.texts, LENGTH, seed=2))
    own = own_rows(target, args.work, args.continuations, seed=1)
    with (args.work / FILE).open("w", encoding="utf-8") as file:
        file.writelines(lines(texts, GIVEN))
        file.writelines(lines(own, PROMPT))


if __name__ == "__main__":
    main()

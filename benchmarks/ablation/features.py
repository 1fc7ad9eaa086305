"""What the drafters read of the training text: the target's hidden states, computed once for all runs and kept in a
shard."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import LlamaForCausalLM

from vllm_specext.training.eagle3.shape import layers_to_read
from vllm_specext.training.features import TargetRows
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.shards import Shard, pack, read_shard, write_shard

TOGETHER = 16
"""Rows that the target reads at once."""


def text_hash(rows: Sequence[Tensor]) -> str:
    return hashlib.sha256(torch.cat(list(rows)).numpy().tobytes()).hexdigest()[:16]


def kept_features(target: LlamaForCausalLM, name: str, rows: Sequence[Tensor], folder: Path) -> Shard:
    """The shard of ``rows`` of token ids in ``folder``, in bfloat16, made if it is not there. ``name`` tells the target
    apart."""
    source = text_hash(rows)
    path = folder / f"features-{source}.safetensors"
    if not path.exists():
        layers = layers_to_read(target.config.num_hidden_layers)
        reader = TargetRows(target, rows, seed=0, layers=layers, kept=False, bfloat16=True)
        numbers = range(len(rows))
        groups = [numbers[start : start + TOGETHER] for start in range(0, len(rows), TOGETHER)]
        found = [row for group in tqdm(groups, desc="features", mininterval=5) for row in _read(reader, group)]
        write_shard(path, pack(found), [str(number) for number in range(len(rows))], name, source)
    return read_shard(path, name)


def _read(reader: TargetRows, group: Sequence[int]) -> list[FeatureRow]:
    rows = reader.read(group)
    return [
        row._replace(features=row.features.bfloat16(), aux=None if row.aux is None else row.aux.bfloat16())
        for row in rows
    ]

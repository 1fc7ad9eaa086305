"""What a training is asked for by name, for the command and for the settings of a run."""

from typing import Literal

Trained = Literal["griffin", "eagle3", "dflash", "dspark", "mtp", "moa"]
"""The methods whose drafters can be trained."""
Answers = Literal["target", "given", "mix"]
"""Whose answers are learnt: the target's own, those in the data, or both."""
Numbers = Literal["auto", "bfloat16", "float16", "float32"]
"""The target's type of numbers."""

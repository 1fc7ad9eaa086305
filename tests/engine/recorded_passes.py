"""What a drafter's forward passes on the real engine are given and give, for ``record`` of ``runner.py``, and how sharp
its probabilities are meant to be then."""

from typing import Any

AT_ONCE = ("peagle-tree", "dflash-tree", "dspark-tree", "pard-tree")
"""Methods that draft all positions in one pass."""


def record_drafter(method: str, speculator: Any, path: str) -> None:
    """Write inputs and outputs of the passes of this speculator's drafter from the first request on; those before it
    are warm-up. They are recorded of all drafters of its class."""
    import torch

    from vllm_specext.engine.drafting.calibrated import CalibratedTrees

    drafter = type(speculator.model)
    stock = drafter.forward
    passes: list[dict[str, Any]] = []
    newest = {"sharpness": torch.ones(1)}
    stock_sharpness = CalibratedTrees.sharpness

    def sharpness(self: Any, step: Any, trees: Any) -> Any:
        newest["sharpness"] = stock_sharpness(self, step, trees)
        return newest["sharpness"]

    CalibratedTrees.sharpness = sharpness  # type: ignore[method-assign]

    def forward(
        self: Any, input_ids: Any, positions: Any, hidden_states: Any = None, inputs_embeds: Any = None, **targets: Any
    ) -> Any:
        if targets:  # the drafter is of the target's class
            return stock(self, input_ids, positions, inputs_embeds=inputs_embeds, **targets)
        inputs = {"ids": input_ids.clone(), "positions": positions.clone(), **newest}
        features = () if hidden_states is None else (hidden_states,)
        if hidden_states is not None:
            inputs["features"] = hidden_states.clone()
        made = stock(self, input_ids, positions, *features)
        predict, regress = made if isinstance(made, tuple) else (made, made)
        passes.append(inputs | {"predict": predict.clone(), "regress": regress.clone()})
        torch.save(passes, path)
        return made

    drafter.forward = forward
    if method in AT_ONCE:
        record_drafts(type(speculator), passes, path)


def record_drafts(speculator: Any, passes: list[dict[str, Any]], path: str) -> None:
    """Add the tokens of every draft of a ``speculator`` to the last of its ``passes``."""
    import torch

    stock = speculator.draft

    def draft(self: Any, step: Any) -> Any:
        made = stock(self, step)
        if passes and not step.dummy:
            passes[-1]["tokens"] = made.tokens.clone()
            torch.save(passes, path)
        return made

    speculator.draft = draft

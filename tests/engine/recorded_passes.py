"""What a drafter's forward passes on the real engine are given and give, for ``record`` of ``runner.py``, and how sharp
its probabilities are meant to be then."""

from typing import Any

VLLMS_DRAFTERS = {
    "eagle3-tree": "vllm.model_executor.models.llama_eagle3:Eagle3LlamaForCausalLM",
    "peagle-tree": "vllm.model_executor.models.llama_eagle3:Eagle3LlamaForCausalLM",
    "dflash-tree": "vllm.model_executor.models.qwen3_dflash:DFlashQwen3ForCausalLM",
    "dspark-tree": "vllm.model_executor.models.qwen3_dspark:Qwen3DSparkForCausalLM",
    "mtp-tree": "vllm.model_executor.models.mimo_mtp:MiMoMTP",
    "draft-model-tree": "vllm.model_executor.models.llama:LlamaForCausalLM",
    "pard-tree": "vllm.model_executor.models.llama:LlamaForCausalLM",
}
"""What drafts for methods without a class of their own."""
AT_ONCE = {
    "peagle-tree": "vllm_specext.methods.eagle.at_once:PEagleSpeculator",
    "dflash-tree": "vllm_specext.methods.block.speculator:BlockSpeculator",
    "dspark-tree": "vllm_specext.methods.block.speculator:BlockSpeculator",
    "pard-tree": "vllm_specext.methods.language_model.at_once:PardSpeculator",
}
"""Speculators of methods that draft all positions in one pass."""


def record_drafter(method: str, path: str) -> None:
    """Write inputs and outputs of the drafter's passes from the first request on; the passes before it are warm-up."""
    import torch

    from vllm_specext.engine.drafting.calibrated import CalibratedTrees
    from vllm_specext.registry import METHODS, load

    drafter = load(METHODS[method].serving_model or VLLMS_DRAFTERS[method])
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
        record_drafts(load(AT_ONCE[method]), passes, path)


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

"""The methods by name. A method is added by one entry here, its options in ``options/`` and one folder under
``methods/``.

Classes are named by path and imported when they are needed, so that listing the methods loads neither torch nor vLLM.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from vllm_specext.declaration import Declaration, Keeps, Reads
from vllm_specext.options.base import MethodOptions
from vllm_specext.options.capture import CaptureOptions
from vllm_specext.options.foreign import SlemOptions, SlrsOptions, TliOptions
from vllm_specext.options.given import GivenOptions
from vllm_specext.options.stock import (
    DFlashTreeOptions,
    DraftModelTreeOptions,
    DSparkTreeOptions,
    Eagle3TreeOptions,
    EagleTreeOptions,
    PardTreeOptions,
    PEagleTreeOptions,
)
from vllm_specext.options.swift import SwiftOptions
from vllm_specext.options.trees import GriffinOptions, MoAOptions, MtpTreeOptions
from vllm_specext.refusals import check_declaration


@dataclass(frozen=True)
class Method:
    name: str
    summary: str
    options: type[MethodOptions]
    declares: Declaration
    preparation: str
    """``module:function`` that checks the drafter against the target and returns `methods.prepared.Prepared`."""
    speculator: str
    """``module:class`` of a ``StepSpeculator``, or a function that makes one of vLLM's configuration and a device."""
    check: str | None = None
    """``module:function`` that checks the finished configuration."""
    architecture: str | None = None
    """The name under which the drafter's serving model is registered with vLLM. ``None`` if the method has none."""
    serving_model: str | None = None
    """``module:class`` of the drafter's serving model."""
    metrics: str | None = None
    """``module:name`` of two classes for metrics, in Prometheus and in the log. They take the place of those of vLLM's
    encoder-cache connector."""

    def __post_init__(self) -> None:
        check_declaration(self.name, self.declares)


COMMON = frozenset({"tensor_parallel", "data_parallel", "multimodal", "prompt_embeds", "kv_connector"})
OVER_HIDDEN_STATES = COMMON | {
    "skip_tokenizer_init",
    "lora",
    "ec_connector",
    "sliding_window",
    "float8_cache",
    "mrope",
    "hybrid",
    "mla",
}
WITHOUT_CONNECTOR = OVER_HIDDEN_STATES - {"ec_connector"}
OVER_HIDDEN_STATES_AS_CHAINS = frozenset({"data_parallel_moe", "quantised_cache"})
ANY_LANGUAGE_MODEL = Declaration(
    reads=Reads.TEXT,
    keeps=Keeps.APART,
    bears=OVER_HIDDEN_STATES - {"skip_tokenizer_init"} | {"data_parallel_moe", "sparse_mla", "quantised_cache"},
    takes_weights=True,
)
"""The declaration of methods that read only the text that the target wrote."""


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="griffin",
            summary="token-aligned draft head over the target's last hidden states (NeurIPS 2025)",
            options=GriffinOptions,
            declares=Declaration(
                reads=Reads.HIDDEN_STATES,
                keeps=Keeps.BESIDE_THE_TARGETS,
                bears=OVER_HIDDEN_STATES,
                chains_bear=OVER_HIDDEN_STATES_AS_CHAINS,
                last_block_stale=True,
                takes_weights=True,
            ),
            preparation="vllm_specext.methods.griffin.prepare:prepare",
            speculator="vllm_specext.methods.griffin.speculator:speculator",
            architecture="GriffinForCausalLM",
            serving_model="vllm_specext.methods.griffin.serving:GriffinForCausalLM",
        ),
        Method(
            name="eagle3-tree",
            summary="trees of vLLM's EAGLE-3 drafters, over hidden states of the target's layers (NeurIPS 2025)",
            options=Eagle3TreeOptions,
            declares=Declaration(
                reads=Reads.AUXILIARY_STATES,
                keeps=Keeps.BESIDE_THE_TARGETS,
                bears=OVER_HIDDEN_STATES,
                chains_bear=OVER_HIDDEN_STATES_AS_CHAINS,
                last_block_stale=True,
                takes_weights=True,
            ),
            preparation="vllm_specext.methods.eagle.prepare:prepare",
            speculator="vllm_specext.methods.eagle.speculator:eagle3",
        ),
        Method(
            name="eagle-tree",
            summary="trees of vLLM's EAGLE-1 and EAGLE-2 drafters, over the target's last hidden states (ICML 2024)",
            options=EagleTreeOptions,
            declares=Declaration(
                reads=Reads.HIDDEN_STATES,
                keeps=Keeps.BESIDE_THE_TARGETS,
                bears=OVER_HIDDEN_STATES,
                chains_bear=OVER_HIDDEN_STATES_AS_CHAINS,
                last_block_stale=True,
                takes_weights=True,
            ),
            preparation="vllm_specext.methods.eagle.prepare:prepare",
            speculator="vllm_specext.methods.eagle.speculator:eagle",
        ),
        Method(
            name="peagle-tree",
            summary="trees of vLLM's P-EAGLE drafters, EAGLE-3's that draft all positions at once (arXiv 2602.01469)",
            options=PEagleTreeOptions,
            declares=Declaration(
                reads=Reads.AUXILIARY_STATES,
                keeps=Keeps.BESIDE_THE_TARGETS,
                bears=WITHOUT_CONNECTOR - {"multimodal", "mrope"},
                last_block_stale=True,
            ),
            preparation="vllm_specext.methods.eagle.prepare:prepare",
            speculator="vllm_specext.methods.eagle.at_once:PEagleSpeculator",
        ),
        Method(
            name="dflash-tree",
            summary="trees of vLLM's DFlash drafters, which draft a block of tokens in one pass (arXiv 2602.06036)",
            options=DFlashTreeOptions,
            declares=Declaration(reads=Reads.AUXILIARY_STATES, keeps=Keeps.BESIDE_THE_TARGETS, bears=WITHOUT_CONNECTOR),
            preparation="vllm_specext.methods.block.prepare:prepare",
            speculator="vllm_specext.methods.block.speculator:dflash",
        ),
        Method(
            name="dspark-tree",
            summary="trees of vLLM's DSpark drafters, a block in one pass and a Markov head (DeepSeek, 2026)",
            options=DSparkTreeOptions,
            declares=Declaration(reads=Reads.AUXILIARY_STATES, keeps=Keeps.BESIDE_THE_TARGETS, bears=WITHOUT_CONNECTOR),
            preparation="vllm_specext.methods.block.prepare:prepare",
            speculator="vllm_specext.methods.block.speculator:dspark",
        ),
        Method(
            name="draft-model-tree",
            summary="trees of a small language model with the target's tokenizer, for which vLLM drafts chains",
            options=DraftModelTreeOptions,
            declares=Declaration(
                reads=Reads.TEXT,
                keeps=Keeps.BESIDE_THE_TARGETS,
                bears=WITHOUT_CONNECTOR - {"skip_tokenizer_init"},
                takes_weights=True,
            ),
            preparation="vllm_specext.methods.language_model.prepare:prepare",
            check="vllm_specext.methods.language_model.prepare:check",
            speculator="vllm_specext.methods.language_model.speculator:LanguageModelSpeculator",
        ),
        Method(
            name="pard-tree",
            summary="trees of PARD's drafters, small models that draft all positions at once (arXiv 2504.18583)",
            options=PardTreeOptions,
            declares=Declaration(
                reads=Reads.TEXT,
                keeps=Keeps.BESIDE_THE_TARGETS,
                bears=WITHOUT_CONNECTOR - {"skip_tokenizer_init", "multimodal", "mrope"},
                takes_weights=True,
            ),
            preparation="vllm_specext.methods.language_model.prepare:prepare",
            check="vllm_specext.methods.language_model.prepare:check",
            speculator="vllm_specext.methods.language_model.at_once:PardSpeculator",
        ),
        Method(
            name="mtp-tree",
            summary="trees of the target's own multi-token prediction module, as Qwen3.5, Gemma 4 and GLM 4.5 have it",
            options=MtpTreeOptions,
            declares=Declaration(
                reads=Reads.HIDDEN_STATES,
                keeps=Keeps.BESIDE_THE_TARGETS,
                bears=WITHOUT_CONNECTOR,
                last_block_stale=True,
                takes_weights=True,
            ),
            preparation="vllm_specext.methods.mtp.prepare:prepare",
            speculator="vllm_specext.methods.mtp.speculator:mtp",
        ),
        Method(
            name="moa",
            summary="mixture of attentions over the target's own keys and values of all layers (ICLR 2025)",
            options=MoAOptions,
            declares=Declaration(
                reads=Reads.KEYS_AND_VALUES,
                keeps=Keeps.BESIDE_THE_TARGETS,
                bears=COMMON | {"skip_tokenizer_init", "lora", "ec_connector", "mrope"},
                takes_weights=True,
            ),
            preparation="vllm_specext.methods.moa.prepare:prepare",
            speculator="vllm_specext.methods.moa.speculator:MoASpeculator",
            architecture="MOASpecModel",
            serving_model="vllm_specext.methods.moa.serving:MoAForCausalLM",
        ),
        Method(
            name="swift",
            summary="the target drafts for itself by skipping layers that it learns to skip while serving (ICLR 2025)",
            options=SwiftOptions,
            declares=Declaration(
                reads=Reads.LAYERS, keeps=Keeps.IN_THE_TARGETS, bears=COMMON | {"skip_tokenizer_init"}
            ),
            preparation="vllm_specext.methods.swift.prepare:prepare",
            speculator="vllm_specext.methods.swift.speculator:SwiftSpeculator",
            metrics="vllm_specext.methods.swift.metrics:METRICS",
        ),
        Method(
            name="slem",
            summary="any language model drafts text, which becomes the target's tokens (ICML 2025)",
            options=SlemOptions,
            declares=ANY_LANGUAGE_MODEL,
            preparation="vllm_specext.methods.foreign_vocab.prepare:prepare",
            check="vllm_specext.methods.foreign_vocab.prepare:check",
            speculator="vllm_specext.methods.foreign_vocab.slem:SlemSpeculator",
        ),
        Method(
            name="tli",
            summary="a language model drafts from the tokens that its vocabulary shares with the target's (ICML 2025)",
            options=TliOptions,
            declares=ANY_LANGUAGE_MODEL,
            preparation="vllm_specext.methods.foreign_vocab.prepare:prepare",
            check="vllm_specext.methods.foreign_vocab.prepare:check",
            speculator="vllm_specext.methods.foreign_vocab.tli:TliSpeculator",
        ),
        Method(
            name="slrs",
            summary="a language model of bytes or few tokens draws drafts from its distribution of texts (ICML 2025)",
            options=SlrsOptions,
            declares=ANY_LANGUAGE_MODEL,
            preparation="vllm_specext.methods.foreign_vocab.prepare:prepare",
            check="vllm_specext.methods.foreign_vocab.prepare:check",
            speculator="vllm_specext.methods.foreign_vocab.slrs:SlrsSpeculator",
        ),
        Method(
            name="given",
            summary="the request's own prediction of its answer, as editors send it; no drafter at all",
            options=GivenOptions,
            declares=Declaration(
                reads=Reads.GIVEN,
                keeps=Keeps.NOWHERE,
                bears=WITHOUT_CONNECTOR,
            ),
            preparation="vllm_specext.methods.given.prepare:prepare",
            speculator="vllm_specext.methods.given.speculator:GivenSpeculator",
        ),
    )
}

CAPTURE = Method(
    name="capture",
    summary="drafts nothing and keeps the target's hidden states, to train drafters with",
    options=CaptureOptions,
    declares=Declaration(
        reads=Reads.HIDDEN_STATES,
        keeps=Keeps.NOWHERE,
        bears=frozenset(
            {
                "tensor_parallel",
                "skip_tokenizer_init",
                "sliding_window",
                "hybrid",
                "mla",
                "multimodal",
                "mrope",
            }
        ),
    ),
    preparation="vllm_specext.methods.capture.prepare:prepare",
    speculator="vllm_specext.methods.capture.speculator:CaptureSpeculator",
)
"""No method to serve with: the preparation of training data asks for it. Users are shown ``METHODS`` alone."""

RUNNABLE: dict[str, Method] = METHODS | {CAPTURE.name: CAPTURE}
"""All that the engine knows by name."""


def load(path: str) -> Any:
    """The object that ``module:name`` stands for."""
    module, name = path.split(":")
    return getattr(import_module(module), name)

"""The speculative configuration of our methods, as vLLM's own object.

``SpecExtConfig`` is what ``VllmConfig.speculative_config`` holds when one of our methods runs. It lives at module level
because it is unpickled in engine and worker processes before plug-ins are loaded there.
"""

from copy import copy
from dataclasses import replace
from typing import Any

import vllm.envs as envs
from pydantic import ValidationError
from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig
from vllm.config.utils import config
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.utils.torch_utils import resolve_kv_cache_dtype_string
from vllm.v1.spec_decode.dynamic.utils import validate_and_normalize_dynamic_sd_schedule

from vllm_specext.declaration import Declaration, Keeps, Reads
from vllm_specext.drafter_paths import refuse_misread
from vllm_specext.engine import float8
from vllm_specext.engine.changes.guard import require_supported_vllm
from vllm_specext.engine.kv_connector import connectors_of, moves_layers, prefills_only, transfer_of
from vllm_specext.engine.registrations import register_drafter_formats, register_serving_models
from vllm_specext.engine.shared_pages import refuse_unshared_pages
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.prepared import Prepared
from vllm_specext.options.base import MethodOptions
from vllm_specext.options.capture import CaptureOptions
from vllm_specext.options.check import check_sizes, parse
from vllm_specext.options.foreign import ForeignOptions
from vllm_specext.refusals import Launch, refuse
from vllm_specext.registry import RUNNABLE, load
from vllm_specext.tree.budget import MANY, TreeShape, fixed_schedule, largest_schedule

logger = init_logger(f"vllm.{__name__}")


@config
class SpecExtConfig(SpeculativeConfig):
    """vLLM's speculative configuration for any of our methods; the drafter's sizes come from its tensors."""

    method: str | None = None
    options: MethodOptions | None = None
    """The user's keys as they were checked."""
    draft_overrides: dict[str, Any] | None = None
    """What the drafter's ``config.json`` is overridden with: its architecture and the widths read from its tensors."""
    draft_vocabulary: tuple[int, ...] | None = None
    """The target's tokens that the drafter scores, ascending; ``None`` for all."""
    adapts: bool = False
    """Whether the scheduler chooses among the schedule's sizes by what it measures; the schedule has the most then."""

    def __post_init__(self) -> SpeculativeConfig:
        target = self.target_model_config
        # vLLM's own version of this method decides by name what kind of drafter it has; the steps that a drafter over
        # the target's hidden states needs are these, through the same helpers.
        self.prompt_lookup_min = self.prompt_lookup_max = 0
        if self.model is None:  # the target drafts for itself
            self.draft_model_config, self.draft_parallel_config = target, self.target_parallel_config
            self.draft_tensor_parallel_size = self.target_parallel_config.tensor_parallel_size
            return self
        if isinstance(self.options, ForeignOptions):
            self._add_language_model(target)
            return self
        if self.options is not None and self.options.stock_method is not None:
            self._add_stock_drafter(self.options.stock_method)
            return self
        self.draft_model_config = ModelConfig(
            model=self.model,
            runner="draft",
            tokenizer=target.tokenizer,
            tokenizer_mode=target.tokenizer_mode,
            dtype=target.dtype,
            quantization=self.quantization,
            seed=target.seed,
            spec_target_max_model_len=target.max_model_len,
            enforce_eager=target.enforce_eager,
            max_logprobs=target.max_logprobs,
            hf_overrides=self.draft_overrides or {},
        )
        # No position lies after the target's context, and a checkpoint's number would size the rotary table.
        self.draft_model_config.hf_config.max_position_embeddings = target.max_model_len
        self.draft_tensor_parallel_size = self.target_parallel_config.tensor_parallel_size
        self.draft_model_config.max_model_len = self._maybe_override_draft_max_model_len(
            None, self.draft_model_config.max_model_len, target.max_model_len
        )
        self.draft_parallel_config = self.create_draft_parallel_config(
            self.target_parallel_config, self.draft_tensor_parallel_size, draft_model_config=self.draft_model_config
        )
        return self

    def _add_language_model(self, target: ModelConfig) -> None:
        """Configure a drafter with its own tokenizer and context."""
        self.draft_model_config = ModelConfig(
            model=self.model,
            runner="draft",
            dtype=target.dtype,
            quantization=self.quantization,
            seed=target.seed,
            enforce_eager=target.enforce_eager,
            trust_remote_code=target.trust_remote_code,
        )
        self.draft_tensor_parallel_size = self.target_parallel_config.tensor_parallel_size
        self.draft_parallel_config = self.create_draft_parallel_config(
            self.target_parallel_config,
            self.draft_tensor_parallel_size,
            draft_model_config=self.draft_model_config,
        )

    def _add_stock_drafter(self, stock_method: str) -> None:
        """Configure a drafter that vLLM has classes for, as vLLM does it for its own method."""
        refuse_misread("the drafter", str(self.model), stock_method)
        ours, self.method = self.method, stock_method
        super().__post_init__()
        self.method = ours
        # vLLM would count on rows of its own for blocks, and refuse them for any method that is not its own.
        self.parallel_drafting = False
        self.draft_model_config.hf_config.update(self.draft_overrides or {})

    def for_drafting_at_once(self) -> "SpecExtConfig":
        """The same for a class of vLLM's that drafts all positions at once only where this says so."""
        own = copy(self)
        own.parallel_drafting = True
        return own

    @property
    def tree(self) -> TreeShape | None:
        """The largest draft tree, ``None`` where the draft is a chain."""
        return None if self.options is None else self.options.tree

    @property
    def levels(self) -> int:
        """The most drafted tokens that one verification can accept: the levels of the largest tree, or a longer
        chain."""
        if self.tree is None:
            return int(self.num_speculative_tokens)
        assert self.options is not None
        return max(self.tree.depth, self.options.longest_given)

    @property
    def schedule(self) -> list[list[int]]:
        """``[first, last, nodes]`` by the number of running requests."""
        return self.num_speculative_tokens_per_batch_size or [[1, MANY, self.num_speculative_tokens]]

    @property
    def sizes(self) -> list[int]:
        """Numbers of tokens that steps may draft, ascending."""
        return sorted({nodes for _, _, nodes in self.schedule})

    @property
    def any_depth(self) -> bool:
        """Whether steps may end their trees at any of the depths that there are to choose among."""
        return self.adapts and self.options is not None and self.options.chooses_depth

    @property
    def declared(self) -> Declaration:
        """What the method declares of itself."""
        assert self.method is not None
        return RUNNABLE[self.method].declares

    def use_eagle(self) -> bool:
        """Whether the drafter has layers in vLLM's cache, which is what vLLM means by this: it then groups caches
        accordingly and never ends a piece of a prompt one token before the prompt's end."""
        return self.declared.keeps is Keeps.BESIDE_THE_TARGETS

    def needs_eagle_block_drop(self) -> bool:
        """vLLM 0.33 asks this alone where it only warns."""
        return self.declared.last_block_stale

    def use_eagle_block_drop(self) -> bool:
        return self.needs_eagle_block_drop() and not self.disable_eagle_block_drop

    def draft_shares_target_positions(self) -> bool:
        """Whether the drafter's context leaves the target's alone; vLLM 0.33 lowers the target's where it does not.

        A drafter with its own text stops drafting for requests that outgrow it. All others have the target's positions,
        and vLLM's own rule holds for them.
        """
        return isinstance(self.options, ForeignOptions) or super().draft_shares_target_positions()

    def compute_hash(self) -> str:
        return f"{self.method}-{self.quantization}-{super().compute_hash()}"


def is_ours(speculative_config: object) -> bool:
    return isinstance(speculative_config, SpecExtConfig)


def reads_aux_states(config: SpecExtConfig) -> bool:
    """Whether the target is to leave hidden states of several of its layers."""
    captures = isinstance(config.options, CaptureOptions) and config.options.aux_layers is not None
    return captures or config.declared.reads is Reads.AUXILIARY_STATES


def create(arguments: Any, raw: dict[str, Any], model: ModelConfig, parallel: ParallelConfig) -> SpecExtConfig:
    """Check ``raw``, the user's ``--speculative-config``, against the launch and build the configuration.

    Raises ``ConfigurationError``, one sentence, for anything the user can put right.
    """
    require_supported_vllm()
    method = RUNNABLE[raw["method"]]
    options = parse(method.options, raw)
    kv_cache_dtype = resolve_kv_cache_dtype_string(arguments.kv_cache_dtype, model)
    transfer = transfer_of(arguments)
    launch = Launch(
        arguments,
        model,
        parallel,
        kv_cache_dtype,
        drafts_trees=options.tree is not None,
        transfer=transfer,
        connectors=connectors_of(transfer),
        moves_layers=moves_layers(transfer),
        batch_invariant=envs.VLLM_BATCH_INVARIANT,
    )
    refuse(method.name, method.declares, launch)
    if options.predicted is not None:
        refuse(f"{method.name} with predictions", RUNNABLE["given"].declares, launch)
    _check_schedule(options.num_speculative_tokens_per_batch_size)
    float8.check(options, model)
    check_sizes(options, model.max_model_len, _step_tokens(arguments), model.is_hybrid)
    register_drafter_formats()
    register_serving_models()
    prepared: Prepared = load(method.preparation)(options, launch)
    if prepared.options is not None:
        options = prepared.options
        refuse(method.name, method.declares, replace(launch, drafts_trees=options.tree is not None))
        check_sizes(options, model.max_model_len, _step_tokens(arguments), model.is_hybrid)
    fields, overrides = dict(prepared.fields), prepared.overrides
    if method.architecture is not None:
        overrides = {"architectures": [method.architecture], **overrides}
    # Engines that share experts work in step, and none of them decides alone.
    in_step = parallel.data_parallel_size > 1 and bool(model.is_moe)
    by_load = options.num_speculative_tokens_per_batch_size
    prefills = prefills_only(transfer) and by_load is None and not in_step
    adapts = options.adaptive_drafts and by_load is None and not in_step and not prefills
    most = options.num_speculative_tokens
    if prefills:
        fields["num_speculative_tokens_per_batch_size"] = [[1, MANY, 0]]
        logger.info(
            "This instance reads prompts for others (kv_role 'kv_producer') and drafts nothing; "
            "num_speculative_tokens_per_batch_size has it draft."
        )
    elif adapts:
        fields["num_speculative_tokens_per_batch_size"] = largest_schedule(most)
    elif options.tree is not None:
        schedule = fixed_schedule(most, current_platform.device_type)
        fields.setdefault("num_speculative_tokens_per_batch_size", schedule)
    try:
        config = SpecExtConfig(
            **fields,
            method=method.name,
            options=options,
            draft_overrides=overrides or None,
            draft_vocabulary=prepared.draft_vocabulary,
            adapts=adapts,
            target_model_config=model,
            target_parallel_config=parallel,
        )
    except ValidationError as error:
        raise ConfigurationError(f"speculative-config is refused by vLLM: {_first_line(error)}") from None
    if method.check is not None:
        load(method.check)(options, config)
    if method.declares.keeps is Keeps.BESIDE_THE_TARGETS and not prepared.is_latent:
        refuse_unshared_pages(model)
    return config


def _step_tokens(arguments: Any) -> int | None:
    """Most tokens of a step as far as the user limits them; vLLM's own, set later, is 256 or more."""
    limits = (arguments.max_num_batched_tokens, arguments.max_num_scheduled_tokens)
    return min((limit for limit in limits if limit is not None), default=None)


def _check_schedule(schedule: list[list[int]] | None) -> None:
    """Refuse what vLLM would refuse later, in another process, where the scheduler is built."""
    if schedule is None:
        return
    try:
        validate_and_normalize_dynamic_sd_schedule(schedule)
    except ValueError as error:
        raise ConfigurationError(
            f"speculative-config key 'num_speculative_tokens_per_batch_size' is {schedule}: {error}"
        ) from None


def _first_line(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))} {first['msg'].splitlines()[0]}".strip()

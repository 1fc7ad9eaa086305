"""Which of vLLM's callables our code overrides in subclasses or calls by position, with their parameters.

Those that are replaced by ours are in the catalogue. ``guard.py`` checks both. A parameter in brackets is one that not
every version of vLLM has that we work with.
"""

_RUNNER = "vllm.v1.worker.gpu"
_ENCODER_CACHE = "vllm.distributed.ec_transfer.ec_connector.metrics"
_CACHES = "vllm.v1.core.kv_cache_planning"
_CACHES_BEFORE = "vllm.v1.core.kv_cache_utils"
_GDN = "vllm.v1.attention.backends.gdn_attn"
_MAMBA_2 = "vllm.v1.attention.backends.mamba2_attn"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_GRAMMARS = "vllm.v1.structured_output:StructuredOutputManager"
_PROPOSE = (
    "self input_batch attn_metadata slot_mappings last_hidden_states aux_hidden_states num_sampled num_rejected "
    "last_sampled next_prefill_tokens temperature seeds dp_sync_state dummy_run skip_attn_for_dummy_run mm_inputs "
    "is_profile num_speculative_tokens"
)
RELIED_ON: dict[str, str] = {
    f"{_SCHEDULER}.add_request": "self request",
    f"{_SCHEDULER}._update_request_as_session": "self session update",
    f"{_SCHEDULER}._free_blocks": "self request",
    f"{_SCHEDULER}._update_after_schedule": "self scheduler_output",
    f"{_SCHEDULER}.update_draft_token_ids": "self draft_token_ids",
    f"{_SCHEDULER}.update_draft_token_ids_in_output": "self draft_token_ids scheduler_output",
    f"{_GRAMMARS}.grammar_bitmask": "self requests structured_output_request_ids scheduled_spec_decode_tokens",
    f"{_GRAMMARS}._get_constraint_bounds": "self request spec_tokens spec_tokens_committed",
    f"{_RUNNER}.spec_decode.utils:DraftTokensHandler.set_draft_tokens": "self input_batch draft_tokens",
    f"{_RUNNER}.spec_decode.utils:DraftTokensHandler.get_draft_tokens": "self",
    f"{_SCHEDULER}.update_from_output": "self scheduler_output model_runner_output",
    f"{_SCHEDULER}.shutdown": "self",
    "vllm.config.speculative:SpeculativeConfig.__post_init__": "self",
    "vllm.config.speculative:SpeculativeConfig.use_eagle": "self",
    "vllm.config.speculative:SpeculativeConfig.use_eagle_block_drop": "self",
    "vllm.config.speculative:SpeculativeConfig.compute_hash": "self",
    "vllm.v1.metrics.loggers:AggregateStatLoggerBase.__init__": "self vllm_config engine_indexes",
    "vllm.v1.metrics.loggers:StatLoggerBase.log_engine_initialized": "self",
    "vllm.v1.spec_decode.metrics:SpecDecodingLogging.__init__": "self is_diffusion",
    "vllm.v1.spec_decode.metrics:SpecDecodingLogging.reset": "self",
    "vllm.v1.spec_decode.metrics:SpecDecodingLogging.observe": "self spec_decoding_stats",
    f"{_RUNNER}.spec_decode.speculator:DraftModelSpeculator.__init__": "self vllm_config device",
    f"{_RUNNER}.spec_decode.speculator:DraftModelSpeculator.load_model": "self target_model",
    "vllm.device_allocator:get_mem_allocator_instance": "",
    "vllm.device_allocator:MemAllocator.use_memory_pool": "self tag",
    "vllm.v1.metrics.loggers:StatLoggerBase.record": "self scheduler_stats iteration_stats mm_cache_stats engine_idx",
    "vllm.v1.spec_decode.metrics:SpecDecodingLogging.log": "self log_fn",
    f"{_ENCODER_CACHE}:ECConnectorLogging.observe": "self transfer_stats_data",
    f"{_ENCODER_CACHE}:ECConnectorLogging.log": "self log_fn",
    f"{_ENCODER_CACHE}:ECConnectorProm.observe": "self transfer_stats_data engine_idx",
    f"{_RUNNER}.model_states.interface:ModelState.custom_sampler": "self sampler",
    f"{_RUNNER}.model_states.interface:ModelState.add_request": "self req_index new_req_data",
    f"{_RUNNER}.model_states.interface:ModelState.initialize_kv_cache": "self kv_cache_config block_tables",
    f"{_RUNNER}.model_states.interface:ModelState.prepare_inputs": "self input_batch req_states",
    f"{_RUNNER}.model_states.interface:ModelState.prepare_attn": (
        "self input_batch cudagraph_mode block_tables slot_mappings attn_groups kv_cache_config for_capture ubatch_idx"
    ),
    f"{_RUNNER}.model_states.interface:ModelState.postprocess_state": (
        "self idx_mapping num_sampled num_computed_tokens"
    ),
    f"{_GDN}:GDNAttentionBackend.get_builder_cls": "",
    f"{_GDN}:GDNAttentionMetadataBuilder.build": (
        "self common_prefix_len common_attn_metadata num_accepted_tokens num_decode_draft_tokens_cpu fast_build"
    ),
    f"{_GDN}:GDNAttentionMetadataBuilder.build_for_cudagraph_capture": "self common_attn_metadata",
    f"{_MAMBA_2}:Mamba2AttentionBackend.get_builder_cls": "",
    f"{_MAMBA_2}:Mamba2AttentionMetadataBuilder.build": (
        "self common_prefix_len common_attn_metadata fast_build kwargs"
    ),
    f"{_MAMBA_2}:Mamba2AttentionMetadataBuilder.update_block_table": "self metadata blk_table slot_mapping",
    "vllm.v1.attention.backends.mamba_attn:BaseMambaAttentionMetadataBuilder.build_for_cudagraph_capture": (
        "self common_attn_metadata"
    ),
    f"{_RUNNER}.spec_decode.speculator:BaseSpeculator.propose": _PROPOSE,
    f"{_RUNNER}.spec_decode.target_dependent_ar.speculator:TargetDependentARSpeculator.propose": _PROPOSE,
    f"{_RUNNER}.spec_decode.eagle.speculator:EagleSpeculator.load_draft_model": (
        "self target_model target_attn_layer_names"
    ),
    f"{_RUNNER}.spec_decode.rejection_sampler:gather_draft_sampled": (
        "input_ids positions logits_indices expanded_idx_mapping expanded_local_pos prefill_len"
    ),
    f"{_RUNNER}.spec_decode.target_dependent_ar.speculator:prepare_decode_inputs": (
        "draft_tokens target_seq_lens num_rejected input_buffers sample_src_positions max_model_len max_num_reqs "
        "advance_draft_positions"
    ),
    f"{_RUNNER}.spec_decode.target_dependent_ar.speculator:TargetDependentARSpeculator._run_model": (
        "self num_tokens attn_metadata slot_mappings num_tokens_across_dp cudagraph_runtime_mode mm_inputs"
    ),
    f"{_RUNNER}.spec_decode.eagle.utils:load_eagle_model": "target_model vllm_config",
    f"{_RUNNER}.sample.sampler:Sampler.add_request": "self req_idx sampling_params",
    f"{_RUNNER}.sample.sampler:Sampler.apply_sampling_params": (
        "self logits expanded_idx_mapping idx_mapping idx_mapping_np pos input_ids expanded_local_pos "
        "seq_lens_upper_bound_np skip_top_k_top_p"
    ),
    f"{_RUNNER}.sample.states:SamplingStates.add_request": "self req_idx sampling_params",
    f"{_RUNNER}.sample.sampler:Sampler.get_logprobs_dims": "self idx_mapping_np include_token_ids",
    f"{_RUNNER}.sample.logprob:compute_topk_scores": (
        "logits num_logprobs sampled_token_ids cu_num_logits logprob_token_ids_state expanded_idx_mapping "
        "max_per_req_token_ids logits_mode"
    ),
    f"{_RUNNER}.spec_decode.rejection_sampler:RejectionSampler.__init__": (
        "self sampler spec_config device watermark_key"
    ),
    f"{_RUNNER}.spec_decode.rejection_sampler:RejectionSampler._verify": (
        "self logits draft_logits draft_sampled pos cu_num_logits idx_mapping idx_mapping_np expanded_idx_mapping "
        "expanded_local_pos seq_lens_upper_bound_np verify_draft_sampled"
    ),
    f"{_RUNNER}.spec_decode.rejection_sampler:RejectionSampler._get_logprobs_tensors": (
        "self sampled num_sampled logits cu_num_logits cu_num_logits_np max_num_logprobs"
    ),
    f"{_RUNNER}.spec_decode.speculator:DraftModelSpeculator.load_draft_model": (
        "self target_model target_attn_layer_names"
    ),
    f"{_RUNNER}.spec_decode.gemma4.speculator:Gemma4Speculator._create_draft_vllm_config": "self",
    f"{_RUNNER}.spec_decode.speculator:DraftModelSpeculator.set_attn": (
        "self model_state kv_cache_config block_tables target_input_buffers target_attn_groups"
    ),
    f"{_RUNNER}.sample.gumbel:gumbel_sample": (
        "logits expanded_idx_mapping temperature seed pos apply_temperature is_drafting logits_cache logits_cache_col "
        "use_fp64 logits_cache_source"
    ),
    f"{_CACHES}:get_kv_cache_groups": "vllm_config kv_cache_spec",
    f"{_CACHES}:get_kv_cache_config_from_groups": "vllm_config kv_cache_groups available_memory",
    f"{_RUNNER}.attn_utils:get_kv_cache_spec": "vllm_config",
    f"{_RUNNER}.attn_utils:init_attn_backend": (
        "kv_cache_config vllm_config device active_layer_names draft_layer_names"
    ),
    f"{_RUNNER}.attn_utils:init_kv_cache": (
        "forward_context kv_cache_config device kernel_block_sizes vllm_config kv_cache_allocation_context "
        "block_tables attn_groups"
    ),
    f"{_RUNNER}.attn_utils:build_slot_mappings_by_layer": "slot_mappings kv_cache_config",
    f"{_RUNNER}.cudagraph_utils:CudaGraphManager.__init__": (
        "self vllm_config device cudagraph_mode decode_query_len lora_capture_cases varlen_decode ubatch_runner"
    ),
    "vllm.model_executor.offloader.base:get_offloader": "",
    "vllm.compilation.cudagraph_pool:capture_pool": "pool vllm_config",
    "vllm.distributed.parallel_state:graph_capture": "device",
    "vllm.ir.op:IrOp.set_priority": "self priority",
    "vllm.renderers.base:BaseRenderer.tokenize_prompt_async": "self prompt params",
    f"{_RUNNER}.block_table:BlockTables.append_block_ids": "self req_index new_block_ids overwrite",
    f"{_RUNNER}.spec_decode.rejection_sampler:RejectionSampler.__call__": (
        "self logits input_batch draft_logits invalid_drafts"
    ),
    f"{_RUNNER}.spec_decode.speculator:BaseSpeculator.init_cudagraph_manager": "self cudagraph_mode",
    f"{_RUNNER}.spec_decode.speculator:BaseSpeculator.capture": "self",
    f"{_RUNNER}.spec_decode.speculator:DraftModelSpeculator.sample_draft": (
        "self hidden_states sample_src_positions idx_mapping temperature seeds draft_step draft_logits spec_step_idx "
        "[num_steps]"
    ),
    f"{_RUNNER}.spec_decode.target_dependent_ar.speculator:TargetDependentARSpeculator.on_prefill_begin": (
        "self num_reqs"
    ),
    f"{_RUNNER}.spec_decode.target_dependent_ar.speculator:TargetDependentARSpeculator.on_prefill_end": "self num_reqs",
}
"""The names of the parameters, by ``module:object``."""

MOVED: dict[str, str] = {
    f"{_CACHES}:{name}": f"{_CACHES_BEFORE}:{name}"
    for name in ("get_kv_cache_groups", "get_kv_cache_config_from_groups")
}
"""Where an older vLLM has what newer ones have elsewhere; ``standalone/moved.py`` imports it from either place."""

IF_THERE: dict[str, str] = {
    "vllm.config.speculative:SpeculativeConfig.needs_eagle_block_drop": "self",
    "vllm.config.speculative:SpeculativeConfig.draft_shares_target_positions": "self",
}
"""What we override in newer versions of vLLM, and an older one lacks and never calls."""

"""What was found when each function was read that vLLM 0.33 changed inside: by sentence, the functions it is about.

A function is named by the end of its path. ``docs_versions.py`` makes a table of this and says of whatever the check
finds beyond it that nobody has read it.
"""

READ: dict[str, tuple[str, ...]] = {
    "Warms up with greedy requests as well, and on a CPU too: ours gives all as many as there is room for.": (
        "warmup.warmup_kernels",
        "gpu_worker.warmup_kernels",
    ),
    "float16 is taken on a CPU with Triton, and rows of unequal length are convolved otherwise: ours runs for all "
    "types but bfloat16, and wherever drafts are verified.": ("gdn_attention.cpu_gdn_attention_core",),
    "Blocks are multiples of what FlashInfer's states within a prompt need, which the drafts do not change.": (
        "Platform._align_hybrid_block_size",
    ),
    "Where FlashInfer leaves states within a prompt, whose rows are vLLM's own kernels', and kernels for XPU.": (
        "GDNAttentionMetadataBuilder.build",
    ),
    "A turn of a session keeps all tokens but the last, which is what our scheduler made of 0.32: ours changes "
    "nothing there. A request that goes on is queued at the step's end; ours queues nothing.": (
        "Scheduler._update_request_as_session",
        "Scheduler._handle_stopped_request",
    ),
    "Pages are offered for reuse as soon as their tokens are known, without asynchronous scheduling too. Accepted "
    "keys are moved and the drafter's written in the same step, so that no other request reads them before. Ours "
    "counts tokens and times before and after.": ("Scheduler.update_from_output",),
    "New drafters and keys, which our options refuse as unknown, and a longer rotary table for more of vLLM's own "
    "drafters. Ours calls it for those alone.": ("SpeculativeConfig.__post_init__",),
    "It asks `needs_eagle_block_drop`, which ours answers by the drafter. Hashes of pages cover the next token, so "
    "that the last page need not be dropped: that is as far ahead as any of our drafters reads.": (
        "SpeculativeConfig.use_eagle_block_drop",
    ),
    "`max_model_len` follows a context that was shortened to what fits. Ours knows the longer one: slots that a block"
    " table has not are not written any more, with either version.": ("DraftModelSpeculator.__init__",),
    "With nothing to draft, the first pass leaves out the LM head itself, as ours did. 0.33 asks for nothing wherever"
    " no request could use drafts, with a fixed number of drafts too.": ("TargetDependentARSpeculator.propose",),
    "For prefill context parallelism, which is refused, or ROCm.": (
        "TargetDependentARSpeculator._run_model",
        "parallel_state.graph_capture",
    ),
    "For keys that ours lack or refuse: a quantised LM head, lossy verification (`fly`), XPress, watermarks.": (
        "eagle.utils.load_eagle_model",
        "RejectionSampler.__init__",
        "RejectionSampler._verify",
        "DraftModelSpeculator.sample_draft",
        "init_speculator",
    ),
    "Groups with a drafter's layers are marked by the caller, from a mark on each layer that vLLM sets for our "
    "drafters too. The cache of a drafter with a tokenizer of its own has no such groups.": (
        "get_kv_cache_groups",
        "attn_utils.get_kv_cache_spec",
    ),
    "V1 is no longer chosen where Triton is missing and the platform is unknown; our methods have V2 anyway.": (
        "VllmConfig.use_v2_model_runner",
        "VllmConfig._validate_v2_model_runner",
    ),
    "The switch of auxiliary states is set earlier, and ours again before the target is loaded. With any drafter, "
    "kernels of top-k and top-p are compiled at start.": ("GPUModelRunner.load_model",),
    "KV connectors are asked before drafting, and drafts go to other pipeline ranks in another way. Ours adds to the "
    "finished output.": ("GPUModelRunner.sample_tokens",),
    "A step whose requests all end with it drafts nothing. Ours reads a number of the step and calls it.": (
        "GPUModelRunner.execute_model",
    ),
    "Pages that no row of the step can see are hidden from layers with a sliding window. A tree's first row stands "
    "where a chain's does; methods that read the whole cache refuse such targets.": (
        "GPUModelRunner.initialize_kv_cache",
    ),
    "A drafter whose `config.json` names a folder as its target is refused. Where one of our methods is named, ours "
    "goes on from there, as it did from vLLM's other refusals.": ("maybe_override_with_speculators",),
    "Another number from the states of top-p, handed on inside. Ours returns before or calls it unchanged.": (
        "Sampler.sample",
    ),
    "The launch has more programs; the body writes everything at once.": (
        "_apply_write_kernel",
        "FusedStagedWriter.apply",
    ),
    "Drafts that another pipeline rank drafted are kept: the body does it where the launch gives them.": (
        "_post_update_kernel",
    ),
    "The noise of drafts and of block verification depends on the place in the draft too: the bodies do it where vLLM "
    "does. Lossy verification (`fly`) is refused.": (
        "_gumbel_sample_kernel",
        "rejection_sampler_utils.rejection_sample",
        "rejection_sampler.rejection_sample",
    ),
    "Rows after the batch are marked as padding: the body does it where the launch asks.": (
        "_prepare_dflash_inputs_kernel",
    ),
    "Pages before a sliding window are hidden: the body does it where vLLM does. Rows that a larger batch left are "
    "cleared, which nothing on a CPU reads.": ("BlockTables.gather_block_tables",),
    "Messages of chats are put together elsewhere, and a stream's chunks made by one generator and written by another. "
    "Ours counts the tokens that go in, and finds the last usage in what is written or returned.": (
        "OpenAIServingChat.chat_completion_stream_generator",
        "OpenAIServingChat.chat_completion_full_generator",
        "OpenAIServingCompletion.completion_stream_generator",
        "OpenAIServingCompletion.request_output_to_completion_response",
    ),
    "Every request has as many rows of masks, and while a request reasons, tokens are masked that would end that and "
    "cannot begin the answer. Ours finds the rows either way, and those of nodes that still reason are the root's.": (
        "StructuredOutputManager.grammar_bitmask",
    ),
    "Copies of output layers that vLLM made for its own drafters give way to what they are copies of, while a drafter "
    "is given weights. Ours are none of these, and are kept apart by ours.": (
        "Worker.update_weights",
        "Worker.finish_weight_update",
    ),
    "The size of a page is decided after the configuration is checked: trees are refused by the size that it will have "
    "where pages of that size are packed.": ("CpuPlatform.check_and_update_config",),
}


def reading_of(path: str) -> str | None:
    """The sentence on a function of vLLM's, ``None`` where nobody has read it."""
    dotted = path.replace(":", ".")
    return next((text for text, ends in READ.items() if dotted.endswith(tuple(f".{end}" for end in ends))), None)

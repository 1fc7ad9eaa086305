"""Every change that we make in vLLM has a mark (``@replaces``), and every mark is of a change."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.unit.assignments import NOT_SEARCHED, read, read_file, unlisted, unmade
from vllm_specext.engine.changes.catalogue import PACKAGE, marks_in
from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import put, wrap, wrap_property

OURS = {
    # Our own classes.
    ("engine/verification/recorded_target.py", "recorded", "checked"),
    ("methods/foreign_vocab/speculator.py", "text", "cached"),
    ("engine/hooks/runner_parts.py", "speculator", "req_states"),
    ("engine/hooks/runner_patches.py", "self.speculator", "derived"),
    ("methods/foreign_vocab/slem.py", "active.texts[place]", "cached"),
    ("methods/griffin/speculator.py", "drafter", "draft_head"),
    ("methods/griffin/serving.py", "self.model", "rows"),
    ("methods/capture/worker.py", "packed", "token_ids"),
    ("methods/moa/speculator.py", "drafter", "draft_head"),
    ("methods/moa/serving.py", "self.model", "target_layers"),
    ("methods/moa/serving.py", "self.model", "target_norm"),
    ("methods/swift/speculator.py", "self.model", "skipped"),
    ("engine/verification/tree_states.py", "self.topology", "parents"),
    ("engine/verification/tree_states.py", "self.topology", "depths"),
    ("engine/verification/tree_states.py", "self.topology", "ancestors"),
    ("methods/foreign_vocab/tokenizers/vocabulary.py", "family", "markers"),
    ("methods/foreign_vocab/tokenizers/vocabulary.py", "family", "token_bytes"),
    ("engine/drafting/tree_speculator.py", "self.passes", "groups"),
    ("engine/drafting/tree_speculator.py", "self.passes", "see"),
    ("engine/standalone/drafter.py", "self.passes", "groups"),
    ("methods/block/speculator.py", "self.passes", "groups"),
    ("methods/language_model/speculator.py", "self.passes", "groups"),
    ("methods/moa/speculator.py", "self.passes", "groups"),
    ("methods/mtp/assistant.py", "self.passes", "groups"),
    ("methods/swift/speculator.py", "self.passes", "groups"),
    ("methods/swift/speculator.py", "self.chains", "ids"),
    ("methods/swift/speculator.py", "chains", "positions"),
    ("methods/swift/speculator.py", "chains", "tokens"),
    ("methods/swift/speculator.py", "chains", "log_probs"),
    ("engine/standalone/captured_passes.py", "own", "written"),
    ("engine/standalone/captured_passes.py", "own", "prefix_lens"),
    ("engine/clients/drafts.py", "asked", "rows"),
    ("engine/clients/drafts.py", "asked", "tree"),
    ("engine/recurrent/layers.py", "step", "trees"),
    ("cpu_runner/gated_delta.py", "operation", "__signature__"),
    # Views of states in the cache, which are there to be written.
    ("engine/recurrent/layers.py", "own", "states"),
    ("engine/recurrent/layers.py", "own", "conv_states"),
    ("engine/recurrent/metadata.py", "step", "slots"),
    ("engine/recurrent/metadata.py", "step", "rows_to_ends"),
    ("cpu_runner/gated_delta.py", "layer", "states"),
    ("cpu_runner/gated_delta.py", "layer", "conv_states"),
    # Copies of our own.
    ("engine/recurrent/state_pages.py", "own", "speculative_config"),
    ("engine/drafting/loading.py", "own", "compilation_config"),
    ("engine/config.py", "own", "parallel_drafting"),
    ("methods/eagle/at_once.py", "own", "speculative_config"),
    ("methods/language_model/prepare.py", "own", "tokenizer"),
    # The standalone drafter's block table, of which no other pass knows.
    ("engine/standalone/captured_passes.py", "group", "block_table"),
    # Buffers that vLLM's base class allocates for our speculator, as it does for its own.
    ("engine/drafting/tree_speculator.py", "self.input_buffers", "input_ids"),
    ("engine/drafting/tree_speculator.py", "self.input_buffers", "positions"),
    # Arguments of an engine that we are about to build.
    ("measure/engine.py", "parsed", "speculative_config"),
    ("measure/engine.py", "parsed", "disable_log_stats"),
    # A copy of the target's, for the drafter alone.
    ("engine/drafting/draft_head.py", "scoring", "vocab_size"),
    ("engine/drafting/draft_head.py", "scoring", "org_vocab_size"),
    # The drafter's configurations, which we make, or copy from the target's.
    ("engine/config.py", "self.draft_model_config", "max_model_len"),
    ("engine/config.py", "self.draft_model_config.hf_config", "max_position_embeddings"),
    ("engine/config.py", "self.draft_model_config", "hf_config"),
    ("methods/stock/config.py", "config", "architectures"),
    ("engine/standalone/cache.py", "self.config.cache_config", "kv_cache_layout"),
    ("engine/standalone/drafter.py", "cache", "cache_dtype"),
    ("engine/standalone/drafter.py", "cache", "num_gpu_blocks_override"),
    ("engine/standalone/drafter.py", "cache", "mamba_block_size"),
    ("engine/standalone/drafter.py", "cache", "kv_offloading_size"),
    ("engine/standalone/drafter.py", "compilation", "static_forward_context"),
    ("engine/standalone/drafter.py", "compilation", "static_all_moe_layers"),
    ("engine/standalone/drafter.py", "compilation", "traced_files"),
    ("methods/moa/serving.py", "unscaled", "rope_parameters"),
    # Where a drafter has what is not its own: a stand-in for a while (``engine/hooks/weight_patches.py``).
    ("engine/drafting/shared_modules.py", "parent", "?"),
    # One request's own values, in functions that are marked, or before vLLM has seen them.
    ("engine/requests.py", "params", "extra_args"),
    ("engine/served_predictions.py", "request", "vllm_xargs"),
    ("engine/served_predictions.py", "usage", "completion_tokens_details"),
    # The server's state of endpoint plug-ins, which is for this.
    ("engine/clients/endpoint.py", "state", "specext_clients"),
    # Python's and other libraries'.
    ("cli/bench_options.py", "command", "__name__"),
    ("cli/bench_options.py", "command", "__doc__"),
    ("cli/bench_options.py", "command", "__signature__"),
    ("cli/bench_options.py", "command", "__annotations__"),
    ("methods/swift/search/suggestion_process.py", "os", "environ"),
    ("preparation/processes.py", "os", "environ"),
    ("measure/forks.py", "multiprocessing", "get_context"),
    ("measure/forks.py", "os", "environ"),
    ("measure/forks.py", "sys", "argv"),
    ("measure/preloaded.py", "os", "environ"),
    ("vllm_process.py", "os", "environ"),
    ("cli/serve.py", "sys", "argv"),
    ("vllm_process.py", "sys", "path"),
    ("bench/vllm_bench.py", "sys", "argv"),
    ("engine/changes/wrapping.py", "sys", "meta_path"),
    ("cli/demo.py", "table", "caption"),
    ("cpu_runner/noise.py", "keys.flags", "writeable"),
    ("methods/foreign_vocab/tokenizers/fast.py", "own", "encode_special_tokens"),
    ("methods/foreign_vocab/tokenizers/native.py", "definition.normalizer_spec", "add_dummy_prefix"),
    # What makes replacements, and marks them.
    ("engine/changes/replacements.py", "function", "__replaces__"),
    ("engine/changes/wrapping.py", "owner", "?"),
    ("engine/changes/wrapping.py", "replacement", "__vllm_specext__"),
    ("engine/changes/wrapping.py", "spec.loader", "exec_module"),
}
"""Assignments to objects that are not vLLM's: file, object and attribute."""


def mark(target: str, **given: object) -> str:
    texts = dict.fromkeys(("name", "why", "how", "upstream", "until"), "x")
    return f"@replaces({target!r}, " + ", ".join(f"{key}={value!r}" for key, value in (texts | given).items()) + ")"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    return tmp_path / "engine" / "new.py"


def test_every_assignment_to_an_object_of_vllms_is_marked() -> None:
    assert unlisted(list(read(PACKAGE)), OURS) == []


def test_folders_that_are_not_searched_import_nothing_of_vllms() -> None:
    files = [file for folder in NOT_SEARCHED for file in (PACKAGE / folder).rglob("*.py")]
    assert {file.relative_to(PACKAGE).parts[0] for file in files} == set(NOT_SEARCHED)
    assert [str(file) for file in files if read_file(file, PACKAGE).imports_vllm] == []


def test_what_counts_as_ours_is_still_there() -> None:
    found = {(each.file, each.owner, each.attribute) for reader in read(PACKAGE) for each in reader.assignments}
    assert found >= OURS


def test_every_mark_is_of_a_replacement_that_is_made() -> None:
    assert unmade(list(read(PACKAGE))) == []


@pytest.mark.parametrize(
    "code",
    [
        "def start(runner): runner.switch = True",
        "def start(runner): runner.output.switch += 1",
        "def start(runner): setattr(runner, NAME, True)",
        "def start(runner): setattr(runner, chosen(), True)",
        "def start(runner): object.__setattr__(runner, 'switch', True)",
        "def start(runner): runner.switch[0] = True",
        "def start(runner): del runner.switch[0][1]",
        "def start(runner): runner.switch.append(True)",
        "def start(runner): runner.switch[0].copy_(runner.other)",
        "from vllm.runner import switch\ndef start(runner): switch['ours'] = True",
        "from vllm.runner import switch\ndef start(runner): switch.update(ours=True)",
        "from vllm.runner import register_switch\ndef start(runner): register_switch(True)",
        "def start(runner):\n  import vllm.runner as ours\n  ours.register_switch(True)",
        "def start(runner):\n  for runner.switch in (1, 2): pass",
        "def start(original):\n  def load(self): self.switch = True\n  return load",
        "class Ours:\n  def start(self):\n    def load(self): self.switch = True\n    return load",
        "def start(runner): wrap(Runner, 'switch', make)",
        "def start(runner): wrap_property(Runner, 'switch', make)",
        "def start(runner): return {(Runner, 'switch'): bodies.make}",
    ],
)
def test_a_replacement_without_a_mark_is_found(source: Path, code: str) -> None:
    source.write_text(f"NAME = 'switch'\n{code}\ndef make(): pass\n")
    assert len(unlisted(list(read(source.parents[1])), set())) == 1
    attribute = "register_switch" if "register" in code else "switch"
    marked = code.replace("def start", f"{mark(f'vllm.Runner.{attribute}')}\ndef start", 1)
    if "make" in code:
        marked = f"{code}\n{mark('vllm.Runner.switch')}"
    elif "class" in code:
        marked = code.replace("  def start", f"  {mark('vllm.Runner.switch')}\n  def start")
    source.write_text(f"NAME = 'switch'\n{marked}\ndef make(): pass\n")
    rest = unlisted(list(read(source.parents[1])), set())
    assert len(rest) == ("chosen" in code)  # a name that is computed is never known to be the marked one


def test_what_a_method_of_ours_sets_on_itself_is_ours(source: Path) -> None:
    source.write_text(
        "class Ours:\n  def start(self):\n    self.switch = True\n    each = lambda: self.switch\n    self.all[0] = 1\n"
    )
    assert unlisted(list(read(source.parents[1])), set()) == []


def test_a_mark_without_a_replacement_is_found(source: Path) -> None:
    source.write_text(f"{mark('vllm.Runner.switch')}\ndef start(runner): runner.lever = True\n")
    assert unmade(list(read(source.parents[1]))) == ["engine/new.py: start switch"]
    assert len(unlisted(list(read(source.parents[1])), set())) == 1
    source.write_text(f"{mark('vllm.Runner.switch')}\ndef start(runner): runner.switch = True\n")
    assert unmade(list(read(source.parents[1]))) == []


def test_an_overridden_method_is_a_replacement(source: Path) -> None:
    source.write_text(f"class Ours(base):\n  {mark('vllm.Base.stop')}\n  def stop(self): pass\n")
    assert unmade(list(read(source.parents[1]))) == []


def test_nothing_is_replaced_by_a_function_without_a_mark_for_it() -> None:
    class Owner:
        def load(self) -> None: ...

    texts = dict.fromkeys(("name", "why", "how", "upstream", "until"), "x")
    before = Owner.load

    @replaces("vllm.Owner.store", **texts)  # type: ignore[arg-type]
    def other(original: object) -> object:
        return original

    for replace in (wrap, wrap_property, put):
        with pytest.raises(LookupError, match=r"'load' is replaced by .*other, but no @replaces above it"):
            replace(Owner, "load", other)  # type: ignore[arg-type]
    assert Owner.load is before
    put(Owner, "load", replaces("vllm.Owner.load", **texts)(lambda self: None))  # type: ignore[arg-type]
    assert Owner.load is not before


def test_the_list_is_read_without_vllm_and_without_torch() -> None:
    program = """
        import sys
        from vllm_specext.engine.changes.catalogue import catalogue

        assert len(catalogue()) > 40
        assert not {"vllm", "torch"} & {name.partition(".")[0] for name in sys.modules}
    """
    done = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_mark_whose_text_has_to_be_computed_is_refused(source: Path) -> None:
    source.write_text("@replaces(NAME + '.switch')\ndef start(runner): pass\n")
    with pytest.raises(ValueError, match=r"engine/new.py: start: the arguments of @replaces must be literals"):
        list(marks_in(source, source.parents[1]))

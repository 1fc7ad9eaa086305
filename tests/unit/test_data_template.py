"""The template of a target: what is read of its folder, which flags it takes, and what text it makes of ids."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.chat_templates import CHATML, QWEN, chat, template, tokenizer_of
from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.template import ChatTemplate, load_template
from vllm_specext.training.data.template_flags import check_flags, variables

BUNDLED = Path(__file__).parents[2] / "vllm_specext/demo/models/target"


def test_of_the_bundled_target(tmp_path: Path) -> None:
    used = load_template(str(BUNDLED))
    end = used.tokenizer.convert_tokens_to_ids("<|end|>")
    # The tokenizer's own, and those of generation_config.json.
    assert used.stop_ids == {end, used.tokenizer.eos_token_id}
    said = chat("Why?", "It depends.")
    text = used.text(said.messages, None, generation_prompt=False)
    assert text == "<|user|>\nWhy?<|end|>\n<|assistant|>\nIt depends.<|end|>\n"
    assert used.ids(said.messages, None, generation_prompt=False) == used.tokenizer.apply_chat_template(
        list(said.messages), return_dict=False
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED / name, tmp_path)
    assert load_template(str(tmp_path)).stop_ids == {used.tokenizer.eos_token_id}
    # Where there is no generation_config.json, vLLM ends answers by the model's configuration, too.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": [7, end]}))
    assert load_template(str(tmp_path)).stop_ids == {used.tokenizer.eos_token_id, 7, end}


@pytest.mark.parametrize("code", [False, True])
def test_a_target_without_a_tokenizer_or_with_code_for_one_is_refused(code: bool, tmp_path: Path) -> None:
    if code:
        own = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["tokenization_mine.Mine", None]}}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
        (tmp_path / "config.json").write_text('{"model_type": "mine"}')
        (tmp_path / "tokenization_mine.py").write_text("raise SystemExit('code of a checkpoint ran')")
    with pytest.raises(ConfigurationError, match=r"has no tokenizer that can be read without code of its own \("):
        load_template(str(tmp_path))


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("enable_thought", r"the template flag 'enable_thought' is none .*; it reads enable_thinking"),
        ("tools", "the template flag 'tools' is none "),
        ("add_generation_prompt", "the template flag 'add_generation_prompt' is none "),
    ],
)
def test_a_flag_that_the_template_does_not_read_is_refused(flag: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        ChatTemplate(tokenizer_of(QWEN), {1}, {flag: True})
    with pytest.raises(ConfigurationError, match=r"it reads none\.$"):
        check_flags([flag], CHATML.replace("add_generation_prompt", "messages"))


def test_templates_that_mark_what_an_assistant_says_are_read() -> None:
    assert variables("{% if a %}{% generation %}{{ b }}{% endgeneration %}{% break %}{% endif %}") == {"a", "b"}
    with pytest.raises(ConfigurationError, match=r"chat template is no Jinja template: line 2 \(.*\)\.$"):
        check_flags([], "{% if a %}\n{% endfor %}")


def test_templates_run_in_a_sandbox() -> None:
    """What a template is not allowed to do ends as a row that is not used."""
    used = ChatTemplate(tokenizer_of("{{ messages.__class__.__mro__ }}{{ messages.append(1) }}"), {1})
    assert used.text(chat("a").messages, None, generation_prompt=True) == "template_refused"


@pytest.mark.parametrize(
    ("text", "ended", "expected"),
    [("yes", True, "yes"), ("yes", False, "yes"), ("<think>\n\n</think>\n\nyes ", True, "<think>\n\n</think>\n\nyes ")],
)
def test_an_answer_becomes_text_without_what_ended_it(text: str, ended: bool, expected: str) -> None:
    used = template("qwen")
    ids = used.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert used.answer_text([*ids, *used.stop_ids] if ended else ids) == expected
    assert used.answer_text([]) == ""


def test_special_tokens_in_an_answer_stay() -> None:
    used = template("qwen")
    inside: list[Any] = used.tokenizer.convert_tokens_to_ids(["[INST]", "<|im_end|>"])
    assert used.answer_text(inside) == "[INST]"

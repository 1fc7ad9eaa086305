"""The target's markers become what plays the same role for the drafter, and nothing else."""

from itertools import permutations
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.unit.foreign_tokenizers import CHATML, ENDS, ROLES, TOKENIZERS, chatml, headers, pieces, vocabulary, wrap
from vllm_specext.methods.foreign_vocab.text.bridge import Bridge
from vllm_specext.methods.foreign_vocab.text.roles import map_markers, opening
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import read_vocabulary

MESSAGES = [
    {"role": "user", "content": "Add 2 and 3."},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "Why?"},
]


def mapping(target: str, drafter: str) -> dict[str, str]:
    """Spelled out; white space is left out, because not every piece of it can be told from what it stands for."""
    tokenizers = [TOKENIZERS[name]() for name in (target, drafter)]
    mapped = map_markers(*tokenizers, vocabulary(target), vocabulary(drafter))
    return {tokenizers[0].convert_ids_to_tokens(id): spell(tokenizers[1], own) for id, own in mapped.items()}


def spell(tokenizer: PreTrainedTokenizerFast, ids: Any) -> str:
    return "".join(tokenizer.decode(list(ids)).split())


MAPPINGS = {
    ("chatml", "headers"): {"<|im_start|>": "<|header|>", "<|im_end|>": "<|eot|>", "<|endoftext|>": "<|eot|>"},
    ("headers", "chatml"): {"<|header|>": "<|im_start|>", "<|eot|>": "<|im_end|>", "<|end_of_text|>": "<|im_end|>"},
    ("chatml", "pieces"): {"<|im_end|>": "<|end|>", "<|endoftext|>": "</s>"},
    ("headers", "pieces"): {"<|begin|>": "<s>", "<|eot|>": "<|end|>", "<|end_of_text|>": "</s>"},
    ("pieces", "chatml"): {
        "<|user|>": "<|im_start|>user",
        "<|assistant|>": "<|im_start|>assistant",
        "<|end|>": "<|im_end|>",
        "</s>": "<|im_end|>",
    },
    ("pieces", "headers"): {
        "<s>": "<|begin|>",
        "<|user|>": "<|header|>user<|/header|>",
        "<|assistant|>": "<|header|>assistant<|/header|>",
        "<|end|>": "<|eot|>",
        "</s>": "<|eot|>",
    },
}


@pytest.mark.parametrize(("target", "drafter"), list(permutations(TOKENIZERS, 2)))
def test_markers_are_mapped_by_role(target: str, drafter: str) -> None:
    assert mapping(target, drafter) == MAPPINGS[target, drafter]


@pytest.mark.parametrize(("target", "drafter"), [("pieces", "chatml"), ("pieces", "headers"), ("headers", "chatml")])
def test_the_drafter_reads_a_conversation_as_in_its_own_template(target: str, drafter: str) -> None:
    tokenizers = [TOKENIZERS[name]() for name in (target, drafter)]
    given, wanted = (
        own.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False) for own in tokenizers
    )
    mapped = map_markers(*tokenizers, vocabulary(target), vocabulary(drafter))
    bridge = Bridge(vocabulary(target), vocabulary(drafter), mapped, opening=opening(tokenizers[1]))
    bridge.commit(given)
    assert spell(tokenizers[1], bridge.draft_ids) == spell(tokenizers[1], wanted)


def without_template(name: str) -> PreTrainedTokenizerFast:
    tokenizer = TOKENIZERS[name]()
    return wrap(tokenizer.backend_tokenizer, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)


@pytest.mark.parametrize("which", [0, 1])
def test_without_a_chat_template_on_either_side_only_begin_and_ends_are_mapped(which: int) -> None:
    tokenizers = [pieces(), headers()]
    tokenizers[which] = without_template(("pieces", "headers")[which])
    mapped = map_markers(*tokenizers, vocabulary("pieces"), vocabulary("headers"))
    spelled = {pieces().convert_ids_to_tokens(id): spell(headers(), own) for id, own in mapped.items()}
    assert spelled == {"<s>": "<|begin|>", "</s>": "<|eot|>", "<|end|>": "<|eot|>"}


def roles_turned_round() -> PreTrainedTokenizerFast:
    """What the others call the user is the assistant here."""
    template = ROLES.replace("m.role }}", "{'user': 'assistant', 'assistant': 'user'}[m.role] }}")
    template = template.replace("<|assistant|>\n{% endif", "<|user|>\n{% endif")
    return wrap(pieces().backend_tokenizer, template, bos_token="<s>", eos_token="</s>")


def test_equal_spellings_mean_nothing() -> None:
    turned = roles_turned_round()
    own = read_vocabulary(turned, size=len(turned), ends=turned.convert_tokens_to_ids(ENDS["pieces"]))
    mapped = map_markers(pieces(), turned, vocabulary("pieces"), own)
    user, assistant = pieces().convert_tokens_to_ids(["<|user|>", "<|assistant|>"])
    assert (mapped[user], mapped[assistant]) == ((assistant,), (user,))


INST = (
    "<s>{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    "{% if m.role == 'user' %}<|user|>{{ m.content }}<|end|>{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)


def test_one_marker_between_two_messages_stands_for_all_that_the_drafter_has_there() -> None:
    instructed, drafter = wrap(pieces().backend_tokenizer, INST, bos_token="<s>", eos_token="</s>"), chatml()
    own = read_vocabulary(instructed, size=len(instructed), ends=[instructed.eos_token_id])
    mapped = map_markers(instructed, drafter, own, vocabulary("chatml"))
    assert {instructed.convert_ids_to_tokens(id): spell(drafter, ids) for id, ids in mapped.items()} == {
        "<|user|>": "<|im_start|>user",
        "<|end|>": "<|im_end|><|im_start|>assistant",
        "</s>": "<|im_end|>",
    }


def test_a_marker_without_a_role_is_not_mapped() -> None:
    tokenizers = [TOKENIZERS["pieces"](), TOKENIZERS["pieces"]()]
    mapped = map_markers(*tokenizers, vocabulary("pieces"), vocabulary("pieces"))
    assert pieces().convert_tokens_to_ids("<tool>") not in mapped
    assert {id: (id,) for id in mapped} == mapped


def test_a_drafter_without_ends_gets_none() -> None:
    plain = without_template("headers")
    own = read_vocabulary(plain, size=len(plain), ends=[])
    mapped = map_markers(TOKENIZERS["chatml"](), plain, vocabulary("chatml"), own)
    assert mapped == {}


def test_markers_beyond_the_embedding_are_not_mapped() -> None:
    tokenizer = pieces()
    first = tokenizer.convert_tokens_to_ids("<|user|>")
    small = read_vocabulary(tokenizer, size=first, ends=[tokenizer.eos_token_id])
    mapped = map_markers(TOKENIZERS["chatml"](), tokenizer, vocabulary("chatml"), small)
    assert all(id < first for own in mapped.values() for id in own)


@pytest.mark.parametrize(("name", "wanted"), [("pieces", ["<s>"]), ("headers", ["<|begin|>"]), ("chatml", [])])
def test_a_text_opens_with_what_the_tokenizer_adds(name: str, wanted: list[str]) -> None:
    tokenizer = TOKENIZERS[name]()
    assert tokenizer.convert_ids_to_tokens(list(opening(tokenizer))) == wanted


def test_a_template_that_fails_is_none() -> None:
    broken = wrap(headers().backend_tokenizer, CHATML + "{{ raise_exception('never') }}", eos_token="<|eot|>")
    mapped = map_markers(TOKENIZERS["chatml"](), broken, vocabulary("chatml"), vocabulary("headers"))
    assert {headers().convert_ids_to_tokens(own[0]) for own in mapped.values()} == {"<|eot|>"}
    assert set(mapped) == vocabulary("chatml").ends

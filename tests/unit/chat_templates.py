"""Chat templates as the large families have them, written for these tests, and a tokenizer that knows their tokens."""

from functools import cache

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from vllm_specext.training.data.conversation import Conversation, conversation
from vllm_specext.training.data.hygiene import spans
from vllm_specext.training.data.row import Row
from vllm_specext.training.data.template import ChatTemplate

LLAMA = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
QWEN = (
    "{% set ns = namespace(asked=-1) %}{% for message in messages %}{% if message.role == 'user' %}"
    "{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}"
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% set parts = message.content.split('</think>') %}"
    "{% if loop.index0 > ns.asked %}<think>\n{{ parts[0].replace('<think>', '').strip() if parts | length > 1 }}\n"
    "</think>\n\n{% endif %}{{ parts[-1].strip() }}{% else %}{{ message.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message.role == 'user' %}[INST]{{ message.content }}[/INST]"
    "{% else %}{{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_GENERATION_PROMPT = (
    "{% for message in messages %}{% if message.role == 'user' %}### Question:\n{{ message.content }}\n### Answer:\n"
    "{% else %}{{ message.content }}{{ eos_token }}\n{% endif %}{% endfor %}"
)
TEMPLATES = {
    "llama": LLAMA,
    "qwen": QWEN,
    "mistral": MISTRAL,
    "chatml": CHATML,
    "no generation prompt": NO_GENERATION_PROMPT,
}
ENDS = {"llama": "<|eot_id|>", "qwen": "<|im_end|>", "chatml": "<|im_end|>"}
"""What ends an answer, if not ``</s>``."""

HARMONY = (
    "{% for message in messages %}<|start|>{{ message.role }}{% if message.role == 'assistant' %}"
    "{% if '<|channel|>' in message.content %}{{ raise_exception('channels in the content') }}{% endif %}"
    "<|channel|>final{% endif %}<|message|>{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""As gpt-oss has it: an answer has several channels, and a message the final one alone."""
NO_PREFIX = "{{ messages | length }} messages:\n" + CHATML
MERGING = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""The prompt ends in a space, which belongs to the next word's token."""

SPECIAL = [
    "<s>", "</s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "[INST]",
    "[/INST]",
]  # fmt: skip
WORDS = (
    "user assistant system messages Question Answer What is the answer to this question? The answer is yes, and no. "
    "One two three four five six seven eight nine ten. I think that it depends on what you ask. 0 1 2 3 4 5 6 7 8 9\n\n"
)
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""How the tokenizers of the large families cut text into words."""


@cache
def tokenizer_of(template: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=template, model_max_length=10**6
    )


def template(name: str, **flags: bool) -> ChatTemplate:
    """One of ``TEMPLATES`` by its name, or any other."""
    tokenizer = tokenizer_of(TEMPLATES.get(name, name))
    end = tokenizer.convert_tokens_to_ids(ENDS.get(name, "</s>"))
    return ChatTemplate(tokenizer, {end}, flags)


def chat(*contents: str, system: str | None = None) -> Conversation:
    """A conversation in which a user begins."""
    said = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    found = conversation((*([{"role": "system", "content": system}] if system else []), *said), None)
    assert isinstance(found, Conversation)
    return found


def answers_in(row: Row, used: ChatTemplate) -> list[str]:
    """The texts of the places that are in the loss, with what ends them."""
    return [used.tokenizer.decode(row.token_ids[start:end]) for start, end in spans(row.loss_mask)]


def shifted(row: Row, by: int) -> Row:
    """A faulty row: the mask is ``by`` tokens too late."""
    return Row(row.token_ids, np.roll(row.loss_mask, by), row.key)

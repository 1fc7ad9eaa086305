"""Tokenizers that cut texts as those of Qwen2.5, SmolLM2 and Llama 3.2 do, trained here with fewer tokens.

What decides whether a text converts is how a tokenizer cuts it into words and numbers, what it normalizes, and which
merges it learned. The first two are as published: Qwen2.5 writes every digit alone and normalizes to NFC, SmolLM2 cuts
digits apart and then words as GPT-2 does, and Llama 3.2 groups three digits and takes a word that is a token as it is,
whatever its merges are.
"""

from functools import cache

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests.unit.foreign_tokenizers import CHATML, CHINESE, EMOJI, LATIN, code, wrap
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import Vocabulary, read_vocabulary

NUMBERS = "".join(f"{n} + {n * 37} = {n * 38}; {n * n}.{n % 100:02d} %\n" for n in range(7, 60_000, 1117))
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_TEMPLATE = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


def trained(size: int, specials: list[str], cuts: list[pre_tokenizers.PreTokenizer], **model: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([code(), LATIN, CHINESE, EMOJI, NUMBERS], trainer)
    return tokenizer


def words_by(split: str) -> list[pre_tokenizers.PreTokenizer]:
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [pre_tokenizers.Split(Regex(split), "isolated"), bytes_alone]


@cache
def qwen() -> PreTrainedTokenizerFast:
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = trained(3000, specials, words_by(rf"{WORDS}\p{{N}}{SIGNS}"))
    tokenizer.normalizer = normalizers.NFC()
    return wrap(tokenizer, CHATML, eos_token="<|im_end|>", pad_token="<|endoftext|>")


@cache
def smollm() -> PreTrainedTokenizerFast:
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    cuts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return wrap(trained(1600, specials, cuts), CHATML, eos_token="<|im_end|>", bos_token="<|im_start|>")


@cache
def llama() -> PreTrainedTokenizerFast:
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = trained(2400, specials, words_by(rf"{WORDS}\p{{N}}{{1,3}}{SIGNS}"), ignore_merges=True)
    tokenizer.post_processor = processors.TemplateProcessing("<|begin_of_text|> $A", None, [("<|begin_of_text|>", 0)])
    return wrap(tokenizer, LLAMA_TEMPLATE, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")


PUBLISHED = {"qwen": qwen, "smollm": smollm, "llama": llama}
ENDS = {
    "qwen": ["<|im_end|>", "<|endoftext|>"],
    "smollm": ["<|im_end|>"],
    "llama": ["<|end_of_text|>", "<|eot_id|>"],
}
PAIRS = [("qwen", "smollm"), ("qwen", "llama")]
"""Target and drafter: SmolLM2 for Qwen2.5, and Llama 3.2 for Qwen2.5."""


@cache
def published(name: str) -> Vocabulary:
    tokenizer = PUBLISHED[name]()
    return read_vocabulary(tokenizer, size=len(tokenizer), ends=tokenizer.convert_tokens_to_ids(ENDS[name]))

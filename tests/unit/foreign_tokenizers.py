"""Small tokenizers of the kinds that meet in practice, trained on first use, and the texts they are tried on."""

import json
import sysconfig
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import Vocabulary, read_vocabulary

_LIBRARY = Path(sysconfig.get_path("stdlib"))

LATIN = """Der Müller fuhr früh über die Brücke, als es – völlig unerwartet – zu schneien begann. “Ça va être long”,
dit-il, et il s'arrêta près d'un café où naïfs et résignés buvaient déjà; coût: 4,50 € le thé. ¿Qué pasó? Doña Núñez
contó que, años atrás, un niño pequeño había cruzado el río a pie. På øya Læsø bor færre enn før. Nothing of this
surprised the old man: he had kept the ferry for thirty-one years, and every winter somebody told him that it couldn't
last. It lasted. The ropes were tarred in March; in April the first carts came, and by May he'd forgotten the snow.
"""
CHINESE = """早上六点，渡口还没有人。老船夫把绳子解开，看了看天色，说今天下午会下雨。他在这条河上工作了三十一年，
见过春天的大水，也见过冬天的薄冰。“你为什么不搬到城里去住呢？”儿子常常这样问他。老人总是笑一笑，不回答。
他知道每一块石头的位置，知道鱼在什么地方过夜；城里的街道再宽，也没有这样的声音。中午，一位老师带着二十个学生来了，
他们要到对岸去看古塔。孩子们第一次坐船，又高兴又害怕，有人唱歌，有人把手伸进水里。老船夫慢慢地划，给他们讲塔的故事：
很久以前，有一个工匠，花了整整十年才把它建成，塔顶的铃铛在有风的夜里会响，十里以外都听得见。龘靐齉爩，谁也没有带伞。
"""
EMOJI = """ok 👍🏽 see you @ 7 🎉🎉 don't forget the 🎂!! 👩🏽‍🚀→🌕 was fun 😂😂😂 bring 👨‍👩‍👧‍👦 & 🐶, ok? ❤️❤️‍🔥
🇫🇷 vs 🇧🇷 tonight ⚽️ … who wins?? 🤷🏻‍♀️ my guess: 2️⃣:1️⃣ 🏆 — lol 🙈🙉🙊 then ☕️+🥐 tomorrow 🌞 ✅ done ❌ not done
the new build is 🔥🔥🔥 (🐛 fixed, 🧪 green) 🚀 ship it 🫡 後で 📦 sent ✈️ 12 kg 📏 ñandú 🦩 über 🚕 naïve 🤓 so 🥱💤
"""


@cache
def code() -> str:
    return "".join((_LIBRARY / name).read_text() for name in ("argparse.py", "textwrap.py", "shlex.py", "heapq.py"))


def texts() -> dict[str, str]:
    return {"code": code()[-6000:], "Latin": LATIN, "Chinese": CHINESE, "emoji": EMOJI}


def _training() -> list[str]:
    return [code(), LATIN, CHINESE, EMOJI]


def wrap(tokenizer: Tokenizer, template: str | None = None, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **special)


def _byte_level(split: str | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    parts = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _train_byte_level(size: int, specials: list[str], split: str | None = None) -> Tokenizer:
    tokenizer = _byte_level(split)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training(), trainer)
    return tokenizer


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "<|begin|>{% for m in messages %}<|header|>{{ m.role }}<|/header|>\n\n{{ m.content }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|header|>assistant<|/header|>\n\n{% endif %}"
)
ROLES = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@cache
def chatml() -> PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2 cuts words; no begin of text."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return wrap(_train_byte_level(3000, specials), CHATML, eos_token="<|im_end|>", pad_token="<|endoftext|>")


@cache
def headers() -> PreTrainedTokenizerFast:
    """Byte-level BPE of another size, which cuts numbers, new lines and words as newer models do."""
    specials = ["<|begin|>", "<|end_of_text|>", "<|header|>", "<|/header|>", "<|eot|>"]
    split = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
    tokenizer = _train_byte_level(1200, specials, split)
    tokenizer.post_processor = processors.TemplateProcessing("<|begin|> $A", None, [("<|begin|>", 0)])
    return wrap(tokenizer, HEADERS, bos_token="<|begin|>", eos_token="<|eot|>")


@cache
def pieces() -> PreTrainedTokenizerFast:
    """As SentencePiece: signs for spaces, one more before a text, and bytes for characters that are rare."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=2000, limit_alphabet=200, show_progress=False)
    learned.train_from_iterator(_training(), trainer)
    model = json.loads(learned.to_str())["model"]
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    ids = {token: id for id, token in enumerate([*specials, *model["vocab"]])}
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return wrap(tokenizer, ROLES, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


TOKENIZERS = {"chatml": chatml, "headers": headers, "pieces": pieces}
ENDS = {
    "chatml": ["<|im_end|>", "<|endoftext|>"],
    "headers": ["<|end_of_text|>", "<|eot|>"],
    "pieces": ["</s>", "<|end|>"],
}


@cache
def vocabulary(name: str) -> Vocabulary:
    tokenizer = TOKENIZERS[name]()
    return read_vocabulary(tokenizer, size=len(tokenizer), ends=tokenizer.convert_tokens_to_ids(ENDS[name]))

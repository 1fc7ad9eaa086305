"""A model's tokenizer and vocabulary from its small files. No weights are read, and where there is a ``tokenizer.json``
neither torch nor transformers is imported.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.end_ids import end_ids
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import Vocabulary, read_vocabulary

FILES = ["*config.json", "*token*", "merges.txt", "vocab.*", "*.model", "*.model.v*", "*.tiktoken", "tekken.json"]


@dataclass(frozen=True)
class TokenizerFiles:
    family: str
    vocabulary: Vocabulary


def read_files(model: str, role: str) -> TokenizerFiles:
    """``model``: a folder or a hub id; ``role`` names it in errors."""
    try:
        folder = _folder(model)
        tokenizer = _tokenizer(folder)
        config, generation = (_read(folder / name) for name in ("config.json", "generation_config.json"))
    except Exception as error:  # the hub client and the loaders raise many kinds; each means that it cannot be had
        if isinstance(error, ModuleNotFoundError) and error.name == "transformers":
            raise  # the command says which extra has it
        raise ConfigurationError(
            f"{role} is {model!r}, whose tokenizer cannot be loaded ({type(error).__name__}); it must be a folder "
            "with a tokenizer's files or a hub id (owner/name)."
        ) from None
    text = config.get("text_config") or config
    ends = end_ids(generation.get("eos_token_id"), text.get("eos_token_id"), tokenizer.eos_token_id)
    size = text.get("vocab_size") or len(tokenizer)
    return TokenizerFiles(_family(tokenizer), read_vocabulary(tokenizer, size=size, ends=ends))


def _folder(model: str) -> Path:
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, allow_patterns=FILES))


def _tokenizer(folder: Path) -> Any:
    if (folder / "tokenizer.json").exists():
        return TokenizerJson(folder)
    from transformers import AutoTokenizer  # which imports torch, and takes seconds

    return AutoTokenizer.from_pretrained(folder)


class TokenizerJson:
    """As much of a transformers tokenizer as is read here. transformers makes several copies of a large vocabulary."""

    is_ours = True
    """Whether nobody else encodes with the tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.name_or_path = str(folder)
        self.backend_tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        named = _read(folder / "special_tokens_map.json") | _read(folder / "tokenizer_config.json")
        spellings = {
            key: token["content"] if isinstance(token, dict) else token
            for key, token in named.items()
            if key.endswith("_token") and isinstance(token, str | dict)
        }
        ids = {key: self.backend_tokenizer.token_to_id(spelling) for key, spelling in spellings.items()}
        self.eos_token_id = ids.get("eos_token")
        self.all_special_ids = [id for id in ids.values() if id is not None]

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size()

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]:
        return [self.backend_tokenizer.id_to_token(id) for id in ids]


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _family(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return type(tokenizer).__name__
    kind = type(backend.model).__name__
    return f"byte-level {kind}" if "ByteLevel" in f"{backend.pre_tokenizer} {backend.decoder}" else f"{kind} of pieces"

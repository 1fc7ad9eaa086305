"""A bundle and a server put together: answers for whoever asks on this machine."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from vllm_specext.remote.answer import Event, Settings
from vllm_specext.remote.client import Client
from vllm_specext.remote.device import bundle as bundles
from vllm_specext.remote.device.socket import connecting
from vllm_specext.remote.device.wording import Wording
from vllm_specext.remote.pace import Pace
from vllm_specext.remote.private import answer_privately, parted
from vllm_specext.remote.protocol import Sampling
from vllm_specext.remote.rows import RowFormat


class Asking:
    def __init__(
        self, folder: Path, url: str, key: str | None, rows: str, always_draft: bool = False, **how: Any
    ) -> None:
        """``rows`` is the kind of ``RowFormat``; ``how``: fields of ``Settings``. Raises ``ConfigurationError`` where
        the folder is no bundle."""
        self._pace = Pace(always_draft)
        self.bundle = bundles.read(folder)
        self.wording = Wording(folder)
        self._connect = connecting(url, key)
        form = RowFormat(*self.bundle.row_heads, rows)
        self._settings = Settings(self.bundle.fingerprint, form, ends=frozenset(self.bundle.ends), **how)
        self._drafter = bundles.drafter_of(folder, self.bundle)

    @property
    def rewrites(self) -> bool:
        """Whether what was said without the server may be taken back."""
        return self._settings.back_online == "rewrite"

    async def answer(self, prompt: list[int], sampling: Sampling, max_tokens: int) -> AsyncGenerator[Event, None]:
        """Raises ``RefusedError``."""
        async with aclosing(self._client().answer(prompt, sampling, max_tokens)) as events:
            async for event in events:
                yield event

    async def answer_privately(
        self, whole: list[int], known: list[int], sampling: Sampling, max_tokens: int
    ) -> AsyncGenerator[Event, None]:
        """The same to a prompt of which the server gets no more than what ``known`` begins with too."""
        told = answer_privately(self._client(), *parted(whole, known), sampling, max_tokens)
        async with aclosing(told) as events:
            async for event in events:
                yield event

    def _client(self) -> Client:
        return Client(self._connect, self._drafter.for_another_text(), self._settings, pace=self._pace)

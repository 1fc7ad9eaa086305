"""What a token of a prompt adds to a step that decodes for other requests too.

Two steps that follow one another, draft as much and decode for about as many requests differ in
little but their prompts. What they took more or less, for each token more or less, is one guess; the guess in use is
the median of the latest, each as heavy as the tokens that it is over (Theil and Sen's line), so that a step that
something else has held up does not count.
"""

from collections import deque
from dataclasses import dataclass, field

from vllm_specext.tree.draft_size import DraftSize
from vllm_specext.tree.timed_steps import about_as_many

FEWEST = 32
"""Tokens of a difference that says something."""

NEEDED, REMEMBERED = 6, 64
"""Guesses before the first answer, and those that are kept."""

MOST = 0.5
"""Share of a step above which prompts hide what decoding takes: from there on, what is too much for them is more than
as much too little for it. A machine that is slow for a while makes both wrong until the guesses have followed."""


@dataclass(frozen=True)
class _Step:
    size: DraftSize
    requests: int
    prompt: int
    seconds: float


@dataclass
class PromptCosts:
    before: _Step | None = None
    guesses: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """Seconds of a token, and tokens."""

    def note(self, size: DraftSize, requests: int, prompt: int, seconds: float | None) -> float | None:
        """Take note of a step that decodes for so many ``requests``, has drafts of this ``size`` and reads so many of
        prompts; ``seconds`` are ``None`` where they say nothing. What it would take without the prompts, ``None`` where
        that is not known."""
        before, self.before = self.before, None
        if seconds is None:
            return None
        self.before = _Step(size, requests, prompt, seconds)
        if before is not None and before.size == size and about_as_many(requests, before.requests):
            more = prompt - before.prompt
            if abs(more) >= FEWEST:
                self.guesses.append(((seconds - before.seconds) / more, abs(more)))
        if not prompt:
            return seconds
        if len(self.guesses) < NEEDED:
            return None
        rest = seconds - self._token() * prompt
        return rest if rest >= (1 - MOST) * seconds else None

    def _token(self) -> float:
        """Seconds of a token."""
        half, seen = sum(tokens for _, tokens in self.guesses) / 2, 0
        for seconds, tokens in sorted(self.guesses):
            seen += tokens
            if seen >= half:
                return max(seconds, 0.0)
        raise AssertionError

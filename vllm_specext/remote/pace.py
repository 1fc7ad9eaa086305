"""Whether a client drafts: it does as it has measured to be faster.

Drafting gets several tokens for one way to the server and back; without, the server is asked for a piece of plainly
decoded text. Which of the two brings more tokens in a second depends on the server, the link, the drafter and the text,
and changes: the slower one is tried again now and then.
"""

from dataclasses import dataclass, field

AT_ONCE = 16
"""Tokens that are asked for without drafts, where this is faster."""
PROBE = 4
"""Tokens that are asked for to see whether it is."""
AGAIN = 24
"""Calls until the slower way is tried again."""
NEW = 0.3
"""What the last call counts for in the mean."""


@dataclass
class Speed:
    tokens: float = 0.0
    seconds: float = 0.0
    calls_ago: int = 0
    """Since it was last tried."""

    @property
    def per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else float("inf")

    def took(self, tokens: float, seconds: float) -> None:
        part = NEW if self.seconds else 1.0
        self.tokens += part * (tokens - self.tokens)
        self.seconds += part * (seconds - self.seconds)


@dataclass
class Pace:
    always_draft: bool = False
    drafting: Speed = field(default_factory=Speed)
    plain: Speed = field(default_factory=Speed)

    def plain_tokens(self) -> int:
        """How many plainly decoded tokens the next call asks for; 0 where it has a tree."""
        if self.always_draft or not self.drafting.seconds:
            return 0
        if self.drafting.per_second < self.plain.per_second < float("inf"):
            return 0 if self.drafting.calls_ago >= AGAIN else AT_ONCE
        return PROBE if not self.plain.seconds or self.plain.calls_ago >= AGAIN else 0

    def took(self, plain_tokens: int, tokens: int, seconds: float, server: float) -> None:
        """A call that asked for ``plain_tokens``, or had a tree, took so long, of which the server's part; so many
        tokens came."""
        now, other = (self.plain, self.drafting) if plain_tokens else (self.drafting, self.plain)
        now.calls_ago, other.calls_ago = 0, other.calls_ago + 1
        if plain_tokens:  # what a whole piece would take
            tokens, seconds = AT_ONCE, seconds - server + server * AT_ONCE / max(1, tokens)
        now.took(tokens, seconds)

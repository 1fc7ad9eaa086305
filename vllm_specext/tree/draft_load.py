"""What is known of one range of running requests: what drafts of each size bring, and what steps with them cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp

from vllm_specext.tree.acceptance import Acceptance
from vllm_specext.tree.draft_size import NOTHING, DraftSize
from vllm_specext.tree.prompt_costs import PromptCosts
from vllm_specext.tree.step_costs import StepCosts
from vllm_specext.tree.timed_steps import TimedSteps


@dataclass
class DraftLoad:
    """Numbers of requests from ``first`` to ``last``, which may have drafts of the ``allowed`` sizes."""

    first: int
    last: int
    allowed: Sequence[DraftSize]
    acceptance: Acceptance
    costs: StepCosts
    steps: TimedSteps
    prompts: PromptCosts = field(default_factory=PromptCosts)
    current: DraftSize = NOTHING
    """The size in use."""
    trying: DraftSize | None = None
    """Another that is tried."""
    left: int = 0
    """Steps that are left of a try."""
    risk: float = 0.0
    """Seconds that a step of the try is expected to lose."""
    wasted: int = 0
    """Steps of the try that said nothing of what they took."""
    untimed: int = 0
    """Such steps in a row."""
    was_timed: bool = False
    """Whether any step has said that."""
    pace: float = 0.0
    """Seconds per token with the current size; 0 while that is not known."""
    has_credit: bool = False
    """Whether it has paid what may be lost by trying when a load is first seen."""
    recheck: int = 0
    """Step after which the current size is compared with plain decoding: at once where what is known of that is from
    another load."""
    patience: int = 0
    """Steps to the comparison after that."""
    decided: int = 0
    """Step of the last look at whether another size is better."""

    @property
    def now(self) -> DraftSize:
        """The size to draft."""
        return self.current if self.trying is None else self.trying

    def begin_try(self, size: DraftSize, steps: int, risk: float) -> None:
        """Try another size for so many steps, each of which is expected to lose ``risk`` seconds."""
        self.trying, self.left, self.risk, self.wasted = size, steps, risk, 0

    def lost(self, size: DraftSize) -> float:
        """What a step with this size is expected to lose beside the current one, in steps of that."""
        slower = self.costs.cost(size) / self.costs.cost(self.current)
        return max(slower - self.tokens(size) / self.tokens(self.current), 0.0)

    def use(self, size: DraftSize) -> None:
        """Have another current size."""
        self.current, self.pace = size, 0.0

    def verified(self, size: DraftSize, accepted: Mapping[int, int]) -> None:
        """Take note of a step that verified drafts of a ``size``: how many requests (values) accepted how many tokens
        (keys)."""
        if size.nodes:
            self.acceptance.note(accepted, size.levels, size.width)
        else:
            self.acceptance.idle()

    def tokens(self, size: DraftSize, hope: float = 0.0) -> float:
        """Tokens of a request that a step with such a draft may be expected to give, the target's own included; with
        ``hope``, that many standard errors more."""
        if not size.nodes:
            return 1.0
        return 1 + min(self.acceptance.tokens(size.levels, size.width, hope), size.nodes)

    def rate(self, size: DraftSize) -> float:
        """Expected tokens of a request, in the time of a step of about that without drafts."""
        return self.tokens(size) / self.costs.cost(size)

    def hope(self, size: DraftSize, step: int) -> float:
        """The rate as it might turn out to be, as far as is known at a ``step``."""
        cost = self.costs.cost(size) * exp(-self.costs.uncertainty(size, step))
        return self.tokens(size, hope=1.0) / cost

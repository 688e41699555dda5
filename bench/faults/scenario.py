"""A scenario: a fault, what is promised when it happens, and what was seen."""

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.faults.rig.rig import Rig
from bench.harness.frame_accounting import NO_MASKS, FrameAccounts
from shared.errors import SkylaneError


class UnavailableError(SkylaneError):
    """This machine, or this user's rights, cannot bring the fault about; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that a scenario prints."""

    name: str  # Such as "recovery p95".
    value: float | None  # None: nothing happened that could be measured.
    unit: str = ""
    most: float | None = None  # What it may be; None: it is told, not judged.

    @property
    def holds(self) -> bool:
        """Whether it is within what is promised; what could not be measured does not hold a promise."""
        return self.most is None or (self.value is not None and self.value <= self.most)

    def __str__(self) -> str:
        value = "none" if self.value is None else f"{self.value:,.4g}" if self.value < 1e4 else f"{self.value:,.0f}"
        limit = "" if self.most is None else f" (at most {self.most:g})"
        return f"{self.name} {value}{' ' if self.unit else ''}{self.unit}{limit}"


@dataclass(slots=True)
class Finding:
    """What a scenario came to."""

    figures: tuple[Figure, ...]
    accounts: FrameAccounts = field(default_factory=FrameAccounts)  # Of all vehicles that took part.
    remarks: tuple[str, ...] = ()  # What a reader should know beside, such as which part was not available.
    broken: tuple[str, ...] = ()  # Promises that did not hold, beside the figures' limits and the accounts.
    keeps_masks: bool = True  # False where there was no room for them: their labels could not be judged.

    @property
    def failures(self) -> list[str]:
        """Every promise that did not hold; none where the scenario is green."""
        figures = [f"{figure} does not hold" for figure in self.figures if not figure.holds]
        unseen = [NO_MASKS] if self.keeps_masks and not self.accounts.masks_checked else []
        return [*self.broken, *figures, *self.accounts.failures, *unseen]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault that is done for real.

    `run` raises UnavailableError where the machine cannot do it, and any other SkylaneError where the bench itself fails,
    which counts as a failure.
    """

    number: int  # As in docs/faults.md.
    name: str  # Lower case, words joined by hyphens: what a user names it by.
    fault: str  # What is done, in a few words.
    promise: str  # What must hold beside the accounts.
    run: Callable[[Rig], Finding]

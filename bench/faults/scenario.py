"""The contract of a fault scenario: the fault, the expected behaviour, and the measured values.

To add one, decorate a function with `scenario` in a module of `scenarios`, and extend the table in docs/guides/faults.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.faults.rig.rig import Rig
from bench.harness.frame_accounting import NO_MASKS, FrameAccounts
from shared.errors import SkylaneError


class UnavailableError(SkylaneError):
    """This machine or this user cannot cause the fault; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value of a scenario, with an optional limit."""

    name: str  # Example: "recovery p95".
    value: float | None  # None: nothing could be measured.
    unit: str = ""
    most: float | None = None  # Maximum allowed value; None: no limit.

    @property
    def holds(self) -> bool:
        """Whether the value is within its limit; a value that could not be measured is not."""
        return self.most is None or (self.value is not None and self.value <= self.most)

    def __str__(self) -> str:
        value = "none" if self.value is None else f"{self.value:,.4g}" if self.value < 1e4 else f"{self.value:,.0f}"
        limit = "" if self.most is None else f" (at most {self.most:g})"
        return f"{self.name} {value}{' ' if self.unit else ''}{self.unit}{limit}"


class Finding:
    """The result of a scenario."""

    def __init__(
        self,
        accounts: FrameAccounts,
        *figures: Figure,
        remarks: Sequence[str] = (),
        broken: Sequence[str] = (),
        keeps_masks: bool = True,
    ) -> None:
        """Creates a result.

        Args:
            accounts: Accounting of the frames of all vehicles.
            figures: The measured values.
            remarks: Notes for the reader, for example which part was not available.
            broken: Broken promises other than limits of figures and accounting.
            keeps_masks: False if masks were not kept, so their labels could not be checked.
        """
        self.accounts = accounts
        self.figures = figures
        self.remarks = remarks
        limits = [f"{figure} does not hold" for figure in figures if not figure.holds]
        unseen = [NO_MASKS] if keeps_masks and not accounts.masks_checked else []
        self.failures = [*broken, *limits, *accounts.failures, *unseen]  # Empty if the scenario passed.


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault that is caused for real.

    `run` raises UnavailableError if the machine cannot cause it. Any other SkylaneError means that the bench itself
    failed, which counts as a failure.
    """

    number: int  # The number in docs/guides/faults.md.
    name: str  # Lower case words joined by hyphens.
    fault: str  # Short description of the fault.
    promise: str  # Expected behaviour, in addition to complete accounting.
    run: Callable[[Rig], Finding]


DECLARED: list[Scenario] = []  # Filled when the modules of `scenarios` are imported.


def scenario(
    number: int, name: str, fault: str, promise: str
) -> Callable[[Callable[[Rig], Finding]], Callable[[Rig], Finding]]:
    """Declares the decorated function as a scenario; the arguments are fields of `Scenario`."""

    def declare(run: Callable[[Rig], Finding]) -> Callable[[Rig], Finding]:
        DECLARED.append(Scenario(number, name, fault, promise, run))
        return run

    return declare

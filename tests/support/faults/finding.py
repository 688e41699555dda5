"""The result of a fault scenario: the measured values, their limits, and the broken promises."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.logs.frame_accounting import FrameAccounts

NO_MASKS = "no mask was checked: it is unknown whether the labels are right"


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

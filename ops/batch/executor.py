"""The contract of an executor, which runs the steps of a batch, and the table of executors."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ops.batch.library import LibraryBag
from shared.registry import Entry

EXECUTORS = {
    "local": Entry("ops.batch.executors.local:LocalExecutor", "batch"),
    "ray": Entry("ops.batch.executors.ray:RayExecutor", "batch"),
}


@dataclass(frozen=True, slots=True)
class BagProgress:
    """The progress of a bag."""

    bag: str  # Its name, see LibraryBag.
    frames: int  # Frames that are written.
    total: int | None  # Frames of the bag; None while unknown.


@dataclass(frozen=True, slots=True)
class BagOutcome:
    """The end of a bag: its results are in their final place, or it failed and left nothing."""

    bag: str
    frames: int = 0
    unreadable: int = 0  # Frames that could not be decoded; the bag is done without them.
    first_unreadable: str = ""  # The first of them, with the reason.
    error: str = ""  # The reason if the bag failed; otherwise empty.
    stops: bool = False  # True if nothing can be written, so that other bags would fail too.


class Executor(Protocol):
    """Runs `steps.decode_bag`, `steps.FrameInference` and `results.ResultWriter` for each bag; built without arguments."""

    def run(
        self, bags: Sequence[LibraryBag], settings: Any, on_progress: Callable[[BagProgress], None]
    ) -> Generator[BagOutcome]:
        """Yields the outcome of every bag once, in any order; closing the generator stops all work in order.

        Args:
            bags: The bags to do, the largest first.
            settings: The BatchSettings.
            on_progress: Called in the calling thread, at most for every frame.

        Raises:
            SkylaneError: no bag can be done, because the model cannot be loaded or the executor has failed.
        """

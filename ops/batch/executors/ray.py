"""The Ray executor: a cluster decodes and infers, and this process writes the results."""

from collections.abc import Callable, Generator, Sequence

from ops.batch.executor import BagOutcome, BagProgress
from ops.batch.executors.ray_driver import RayDriver
from ops.batch.executors.ray_rows import Row, RowKind
from ops.batch.frames import BagEnd
from ops.batch.library import LibraryBag
from ops.batch.output.results import ResultWriter
from ops.batch.settings import BatchSettings
from ops.batch.steps import BatchError


class RayExecutor:
    """Runs a batch on a Ray cluster, or on one that is started on this machine."""

    def run(
        self, bags: Sequence[LibraryBag], settings: BatchSettings, on_progress: Callable[[BagProgress], None]
    ) -> Generator[BagOutcome]:
        """See Executor."""
        unfinished = dict(enumerate(bags))
        started: dict[int, _StartedBag] = {}
        driver = RayDriver(bags, settings)
        try:
            for row in driver.rows():
                if row.kind == RowKind.REFUSAL:
                    raise BatchError(row.value())
                if row.bag not in unfinished:
                    continue  # The bag has failed.
                if row.bag not in started:
                    started[row.bag] = _StartedBag(bags[row.bag], settings)
                outcome = started[row.bag].add(row, on_progress)
                if outcome is not None:
                    del unfinished[row.bag], started[row.bag]
                    yield outcome
            for bag in unfinished.values():
                lost = f"Ray lost a part of it, because it ended its process again and again: see {driver.log}"
                yield BagOutcome(bag.name, error=lost)
        finally:
            driver.stop()
            for left in started.values():
                left.discard()


class _StartedBag:
    """Writes the results of a bag in order."""

    def __init__(self, bag: LibraryBag, settings: BatchSettings) -> None:
        self._bag = bag
        self._writer = ResultWriter(bag, settings)
        self._next = 0
        self._early: dict[int, Row] = {}  # Rows whose predecessors are missing, by position.

    def add(self, row: Row, on_progress: Callable[[BagProgress], None]) -> BagOutcome | None:
        """Writes what can be written now; returns the outcome of the bag at its end."""
        self._early[row.position] = row
        while (due := self._early.pop(self._next, None)) is not None:
            self._next += 1
            if due.kind == RowKind.END:
                return self._writer.finish(due.value())
            self._writer.write(due.value())
            if self._writer.failed:
                return self._writer.finish(BagEnd())
            on_progress(BagProgress(self._bag.name, self._writer.frames, due.total))
        return None

    def discard(self) -> None:
        """Deletes what is not completed."""
        self._writer.discard()

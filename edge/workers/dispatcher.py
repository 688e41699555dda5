"""The contract and the table of dispatchers, which choose the worker of a frame, and the simplest one."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from edge.frame_record import GROUP, Assignment, FrameRecord
from edge.workers.worker_directory import WorkerWatch


class Dispatcher(Protocol):
    """Chooses workers. Built with the WorkerWatch; any thread may call it."""

    def choose(self, in_flight: Sequence[FrameRecord], now_ns: int, excluded: Collection[str] = ()) -> Assignment:
        """Returns the worker for the next frame, without waiting.

        Args:
            in_flight: The frames of this vehicle that were sent and have not ended, the oldest first.
            now_ns: The current time, by `shared.clock`.
            excluded: Names of workers that must not get the frame.
        """


class DispatcherEntry(NamedTuple):
    """A row of the table."""

    path: str  # "module:attribute" of a Dispatcher.
    extra: str  # The pip extra that installs its dependencies.
    needs_loads: bool  # True if the transport must subscribe to the loads that workers report.


DISPATCHERS = {
    "load": DispatcherEntry("edge.workers.load_dispatcher:LoadDispatcher", "edge", needs_loads=True),
    "group": DispatcherEntry("edge.workers.dispatcher:GroupDispatcher", "edge", needs_loads=False),
}


class GroupDispatcher:
    """Leaves the choice to the broker. See Dispatcher."""

    def __init__(self, watch: WorkerWatch) -> None:
        """Ignores `watch`."""

    def choose(
        self,
        in_flight: Sequence[FrameRecord],  # noqa: ARG002  The broker chooses.
        now_ns: int,  # noqa: ARG002  The same.
        excluded: Collection[str] = (),  # noqa: ARG002  The same.
    ) -> Assignment:
        """See Dispatcher."""
        return GROUP

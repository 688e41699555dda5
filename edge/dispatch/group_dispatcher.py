"""Dispatch by the broker: the workers of a model share a subscription, and the broker deals the frames to them in turn."""

from collections.abc import Collection, Sequence

from edge.dispatch.dispatcher import GROUP, Assignment
from edge.reliability.frame_record import FrameRecord
from edge.reliability.worker_clocks import WorkerClocks
from edge.reliability.worker_directory import WorkerDirectory


class GroupDispatcher:
    """Leaves the choice to the broker. See Dispatcher."""

    def __init__(self, workers: WorkerDirectory, clocks: WorkerClocks) -> None:
        """Needs nothing of the workers."""

    def choose(
        self,
        in_flight: Sequence[FrameRecord],  # noqa: ARG002
        now_ns: int,  # noqa: ARG002
        excluded: Collection[str] = (),  # noqa: ARG002
    ) -> Assignment:
        """See Dispatcher."""
        return GROUP

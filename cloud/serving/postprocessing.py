"""Postprocessing: makes the requested result from the outputs of the model, while the next batch is inferred.

If no result waits, the thread of the engine makes that of the last frame of a batch itself.
"""

from cloud.serving.latency_estimator import LatencyEstimator
from cloud.serving.replies import Replier
from cloud.serving.request import Request
from shared import clock
from shared.errors import SkylaneError
from shared.inference.model import Model
from shared.messages.frame import Status
from shared.stages import Stage
from shared.task import task_named
from shared.threads import BoundedQueue

_BACKLOG = 16


class Postprocessor:
    """Makes the result of each inferred frame, encodes it and sends the reply."""

    def __init__(self, replier: Replier, threads: int = 1) -> None:
        """`threads` is the number of postprocessing threads."""
        self.latency = LatencyEstimator()  # The time from the end of inference to the reply.
        self._work = LatencyEstimator()  # The part of it without the wait for a thread.
        self._replier = replier
        self._threads = threads
        self._handover: BoundedQueue[tuple[Request, Model]] = BoundedQueue(_BACKLOG)

    @property
    def spacing_ns(self) -> int:
        """The typical time between two results if all threads are busy."""
        return self._work.median_ns // self._threads

    @property
    def expected_ns(self) -> int:
        """The expected time until the reply to a frame that is inferred now, behind the results that wait."""
        return self._handover.depth * self.spacing_ns + self._work.median_ns

    def put(self, request: Request, model: Model) -> None:
        """Queues an inferred frame for a postprocessing thread; blocks while the queue is full."""
        self._handover.put((request, model))

    def close(self) -> None:
        """Lets the threads end once the queue is empty."""
        self._handover.close()

    def run(self) -> None:
        """Processes frames until closed; the body of a postprocessing thread."""
        with self._handover.reader() as get:
            while (item := get()) is not None:
                self.process(*item)

    def process(self, request: Request, model: Model) -> None:
        """Processes an inferred frame in the calling thread."""
        assert request.message is not None
        assert request.outputs is not None
        begin_ns = clock.now_ns()
        try:
            if request.wants_outputs:
                request.stamp(Stage.POSTPROCESSED)
                self._replier.outputs(request, model.card, request.outputs)
            else:
                result = task_named(model.card.task).result(request.outputs, request.message, model.manifest)
                request.outputs = None
                request.stamp(Stage.POSTPROCESSED)
                self._replier.result(request, model.card, result)
            self.latency.add(request.times[Stage.REPLIED] - request.times[Stage.INFERRED])
            self._work.add(request.times[Stage.REPLIED] - begin_ns)
        except SkylaneError as error:
            self._replier.refuse(request, Status.REJECTED, str(error))
        except Exception as error:  # noqa: BLE001  The frame fails, the worker goes on.
            self._replier.fail(request, "postprocessing", error)

"""Post-processing: from what the model gave to the result that was asked for, beside the next inference."""

from cloud.models.model import Model
from cloud.serving.latency_estimator import Estimate
from cloud.serving.replies import Replier
from cloud.serving.request import Request
from cloud.tasks.task import TASKS
from shared.errors import SkylaneError
from shared.messages.frame import Status
from shared.runtime.threads import BoundedQueue
from shared.stages import Stage

_BACKLOG = 16


class Postprocessor:
    """Makes each frame's result, encodes it and answers."""

    def __init__(self, replier: Replier) -> None:
        self.finishing = Estimate()  # From a frame's inference to its answer.
        self._replier = replier
        self._handover: BoundedQueue[tuple[Request, Model]] = BoundedQueue(_BACKLOG)

    def put(self, request: Request, model: Model) -> None:
        """Queue an inferred frame with the model that inferred it."""
        self._handover.put((request, model))

    def close(self) -> None:
        """No more frames will come."""
        self._handover.close()

    def run(self) -> None:
        """Answer until closed; the body of the post-processing thread."""
        with self._handover.reader() as get:
            while (item := get()) is not None:
                self.answer(*item)

    def answer(self, request: Request, model: Model) -> None:
        """Answer an inferred frame now, in this thread."""
        assert request.message is not None
        assert request.outputs is not None
        try:
            if request.reply_with_outputs:
                request.stamp(Stage.POSTPROCESSED)
                self._replier.heads(request, model.card, request.outputs)
            else:
                result = TASKS[model.card.task](request.outputs, request.message, model.manifest)
                request.outputs = None
                request.stamp(Stage.POSTPROCESSED)
                self._replier.result(request, model.card, result)
            self.finishing.add(request.times[Stage.REPLIED] - request.times[Stage.INFERRED])
        except SkylaneError as error:
            self._replier.refuse(request, Status.REJECTED, str(error))
        except Exception as error:  # noqa: BLE001  The frame fails, the worker goes on.
            self._replier.fail(request, "postprocessing", error)

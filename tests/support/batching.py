"""A batcher with its threads, and an engine that waits for a gate."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.serving.admission import Admission
from cloud.serving.batching import Batcher
from cloud.serving.replies import Postprocessor, Replier
from cloud.serving.request import Request
from shared import clock
from shared.clock import Deadline
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.inference.engine import Outputs
from shared.inference.model import Model
from shared.messages.frame import FrameMessage, ResultMessage, Status
from shared.messages.topics import FrameId
from shared.models.manifest import Precision
from shared.stages import CLOUD_STAGES
from shared.threads import ThreadGroup
from tests.support import tiny_model
from tests.support.cloud_requests import make_request
from tests.support.tiny_model import HEIGHT, WIDTH

WAIT_S = 60.0


class GatedEngine:
    """An engine that returns the first channel of each image once its gate is open."""

    name = "tensorflow"
    device = "cpu"
    precision = Precision.FP32

    def __init__(
        self,
        batch_size: int | None = None,
        error: Exception | None = None,
        poison: Sequence[int] = (),
        *,
        is_reentrant: bool = False,
    ) -> None:
        """`error` is raised for every batch, or only for those with an image of one of the numbers in `poison`."""
        self.is_reentrant = is_reentrant
        self.batch_size = batch_size
        self.error = error
        self.poison = poison
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.begun = threading.Semaphore(0)  # Released once per batch.
        self.sizes: list[int] = []
        self.most = 0  # The largest number of concurrent batches.
        self._now = 0
        self._lock = threading.Lock()

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See Engine."""
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self.entered.set()
        self.begun.release()
        assert self.gate.wait(WAIT_S)
        with self._lock:
            self._now -= 1
        self.sizes.append(len(batch))
        if self.error and (not self.poison or np.isin(batch[:, 0, 0, 0], self.poison).any()):
            raise self.error
        return {"mask": np.ascontiguousarray(batch[..., 0])}

    def close(self) -> None:
        """See Engine."""


class _Postprocessor(Postprocessor):
    """Records the inferred frames, and which of them the engine's thread processed itself."""

    def __init__(self, replier: Replier, done: "list[tuple[Request, npt.NDArray[np.uint8]]]") -> None:
        super().__init__(replier)
        self.processed: list[int] = []
        self.finished = threading.Semaphore(0)  # Released once per frame.
        self._done = done

    def put(self, request: Request, model: Model) -> None:
        """Records a frame."""
        del model
        assert request.outputs is not None
        self._done.append((request, request.outputs["mask"]))
        self.finished.release()

    def process(self, request: Request, model: Model) -> None:
        """Records a frame that the engine's thread processes."""
        assert request.id is not None
        self.processed.append(request.id.sequence)
        self.put(request, model)


class BatcherRig:
    """A batcher with its threads, the inferred frames and the refusals."""

    def __init__(self, engine: GatedEngine, max_size: int = 1, instances: int = 1, **options: Any) -> None:
        self.engine = engine
        model = tiny_model.model(engine=engine, max_size=max_size)
        model.instances = self.instances = instances
        self.done: list[tuple[Request, npt.NDArray[np.uint8]]] = []
        self.refused: list[ResultMessage] = []
        self.threads = ThreadGroup(lambda: None)
        self.admission = Admission()
        replier = Replier("w", "cloud/w/s9")
        self.postprocessor = _Postprocessor(replier, self.done)
        self.batcher = Batcher(model, replier, self.admission, self.postprocessor, **options)

    def request(self, number: int, budget_ms: int | None = None, received_ns: int | None = None) -> Request:
        """A decoded frame whose pixels are all its number."""
        message = FrameMessage(
            id=FrameId("car", "left", "s1", number),
            model="tiny",
            layout=Layout.RGB8,
            shape=(HEIGHT, WIDTH, 3),
            codec="raw",
            geometry=plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
            stamp_ns=0,
            data=b"",
            deadline=Deadline.after_ms(budget_ms, received_ns),
        )
        return make_request(
            reply=self.refused.append,
            times=dict.fromkeys(CLOUD_STAGES[:3], received_ns or clock.now_ns()),
            message=message,
            image=np.full((HEIGHT, WIDTH, 3), number, np.uint8),
        )

    def put(self, *requests: Request) -> None:
        """Puts decoded frames into the batcher, as a decoder does."""
        for request in requests:
            assert self.batcher.reserve()
            self.batcher.put(request)

    def start(self) -> None:
        """Starts the engine threads."""
        for _ in range(self.instances):
            self.threads.start("engine", self.batcher.run)

    def answers(self) -> list[tuple[int, Status, str]]:
        """Number, status and reason of the refused frames."""
        return [(answer.id.sequence, answer.status, answer.reason) for answer in self.refused]

    def finish(self) -> None:
        """Opens the gate, closes the batcher and waits for its threads."""
        self.engine.gate.set()
        self.batcher.close()
        self.threads.join(WAIT_S)

    def numbers(self) -> list[int]:
        """Numbers of the inferred frames, after checking that each has its own mask."""
        for request, mask in self.done:
            assert request.message is not None
            np.testing.assert_array_equal(mask, np.full((HEIGHT, WIDTH), request.message.id.sequence, np.uint8))
        return [request.message.id.sequence for request, _ in self.done if request.message]

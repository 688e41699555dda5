"""A batcher in threads of its own, before an engine that waits for its gate."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.engines.engine import Outputs, Precision
from cloud.models.manifest import BatchingSection, InputSection, Manifest, OutputKind, OutputSection
from cloud.models.model import Model
from cloud.serving.admission import Admission
from cloud.serving.batching import Batcher
from cloud.serving.replies import Replier
from cloud.serving.request import Request
from shared import clock
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import FrameMessage, ResultMessage, Status
from shared.messages.topics import FrameId
from shared.runtime.threads import ThreadGroup
from shared.stages import CLOUD_STAGES
from tests.support.tiny_model import CARD, HEIGHT, WIDTH

WAIT_S = 60.0


class Gated:
    """An engine that answers each picture's first number, and waits for its gate."""

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
        """`error` is raised for every batch, or for those that hold a picture of the numbers `poison`."""
        self.is_reentrant = is_reentrant
        self.batch_size = batch_size
        self.error = error
        self.poison = poison
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.begun = threading.Semaphore(0)  # Once for each batch.
        self.sizes: list[int] = []
        self.most = 0  # Batches at a time.
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


def _model(engine: Gated, max_size: int) -> Model:
    manifest = Manifest(
        format="frozen_graph",
        file="none",
        sha256=CARD.sha256,
        input=InputSection(tensor="input:0", height=HEIGHT, width=WIDTH),
        output=OutputSection(tensor="prediction:0", kind=OutputKind.CLASS_IDS),
        labels_file="none",
        batching=BatchingSection(max_size=max_size),
    )
    return Model(manifest, CARD, engine)


class Line:
    """A batcher in its thread, and what comes out of it on either side."""

    def __init__(self, engine: Gated, max_size: int = 1, instances: int = 1, **options: Any) -> None:
        self.engine = engine
        model = _model(engine, max_size)
        model.instances = self.instances = instances
        self.done: list[tuple[Request, npt.NDArray[np.uint8]]] = []
        self.refused: list[ResultMessage] = []
        self.threads = ThreadGroup(lambda: None)
        self.admission = Admission()
        self.batcher = Batcher(model, Replier("w", "cloud/w/s9"), self.admission, self._done, **options)

    def request(self, number: int, budget_ms: int | None = None, received_ns: int | None = None) -> Request:
        """A decoded frame whose pixels are its number."""
        message = FrameMessage(
            id=FrameId("car", "left", "s1", number),
            model="tiny",
            layout=Layout.RGB8,
            shape=(HEIGHT, WIDTH, 3),
            codec="raw",
            geometry=plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
            frame_stamp_ns=0,
            data=b"",
            budget_ms=budget_ms,
        )
        return Request(
            payload=b"",
            vehicle="car",
            camera="left",
            model="tiny",
            answer=self.refused.append,
            times=dict.fromkeys(CLOUD_STAGES[:3], received_ns or clock.now_ns()),
            max_reply_bytes=1000,
            message=message,
            picture=np.full((HEIGHT, WIDTH, 3), number, np.uint8),
        )

    def put(self, *requests: Request) -> None:
        """What a decoder does with each."""
        for request in requests:
            assert self.batcher.reserve()
            self.batcher.put(request)

    def start(self) -> None:
        """Start the engine's threads."""
        for _ in range(self.instances):
            self.threads.start("engine", self.batcher.run)

    def answers(self) -> list[tuple[int, Status, str]]:
        """Number, status and reason of the frames that were refused."""
        return [(answer.id.sequence, answer.status, answer.reason) for answer in self.refused]

    def _done(self, request: Request, _: Model) -> None:
        assert request.outputs is not None
        self.done.append((request, request.outputs["mask"]))

    def finish(self) -> None:
        """Let the engine go, and wait for the end."""
        self.engine.gate.set()
        self.batcher.close()
        self.threads.join(WAIT_S)

    def numbers(self) -> list[int]:
        """The frames that came out, each with its own mask."""
        for request, mask in self.done:
            assert request.message is not None
            np.testing.assert_array_equal(mask, np.full((HEIGHT, WIDTH), request.message.id.sequence, np.uint8))
        return [request.message.id.sequence for request, _ in self.done if request.message]

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cloud.batching import Batcher
from cloud.engines.engine import InferenceError, Outputs, Precision
from cloud.manifest import BatchingSection, InputSection, Manifest, OutputKind, OutputSection
from cloud.model import Model
from cloud.replies import Replier
from cloud.request import Request
from shared import clock
from shared.frames import Layout
from shared.geometry import Resize, plan
from shared.labels import Labels
from shared.messages import FrameMessage, MaskMessage, Status
from shared.model_card import ModelCard, Task
from shared.stages import Stage
from shared.threads import ThreadGroup
from shared.topics import FrameId

WAIT_S = 20.0
HEIGHT, WIDTH = 4, 6
CARD = ModelCard(
    "tiny", "1", "ab" * 32, Task.SEGMENTATION, HEIGHT, WIDTH, Layout.RGB8, Resize.CROP, Labels(("a",), ((0, 0, 0),)), trained=True
)  # fmt: skip


class Gated:
    """An engine that answers each picture's first number, and waits for its gate."""

    name = "tensorflow"
    device = "cpu"
    precision = Precision.FP32

    def __init__(self, batch_size: int | None = None, error: Exception | None = None) -> None:
        self.batch_size = batch_size
        self.error = error
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.sizes: list[int] = []

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See Engine."""
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        self.sizes.append(len(batch))
        if self.error:
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

    def __init__(self, engine: Gated, max_size: int = 1, **options: Any) -> None:
        self.engine = engine
        self.done: list[tuple[Request, npt.NDArray[np.uint8]]] = []
        self.refused: list[MaskMessage] = []
        self.threads = ThreadGroup(lambda: None)
        self.batcher = Batcher(
            _model(engine, max_size), Replier("w", "cloud/w/s9"), lambda *item: self.done.append(item), **options
        )

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
            times={Stage.RECEIVED: received_ns or clock.now_ns()},
            largest_answer=1000,
            message=message,
            picture=np.full((HEIGHT, WIDTH, 3), number, np.uint8),
        )

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


def test_what_waits_is_inferred_together_and_each_gets_its_own_mask() -> None:
    """While the engine is busy a batch gathers; a mask that went to another frame would be the worst fault of all."""
    line = Line(Gated(), max_size=4)
    line.batcher.put(line.request(0))
    line.threads.start("engine", line.batcher.run)
    assert line.engine.entered.wait(WAIT_S)
    for number in range(1, 7):
        line.batcher.put(line.request(number))
    line.finish()
    assert line.numbers() == list(range(7))
    assert line.engine.sizes == [1, 4, 2]
    assert [request.batch_size for request, _ in line.done] == [1, 4, 4, 4, 4, 2, 2]


def test_the_stamps_of_a_batch_are_those_of_its_inference() -> None:
    """Not of the handing on: the last frame of a batch must not look slower than the first."""
    line = Line(Gated(), max_size=4)
    for number in range(4):
        line.batcher.put(line.request(number))
    line.threads.start("engine", line.batcher.run)
    line.finish()
    assert line.engine.sizes == [4]
    batched = [request.times[Stage.BATCHED] for request, _ in line.done]
    inferred = [request.times[Stage.INFERRED] for request, _ in line.done]
    assert max(batched) <= min(inferred)
    assert all(request.picture is None for request, _ in line.done)


def test_a_batch_baked_into_the_graph_is_the_batch() -> None:
    """A manifest that promises more must not make the log say more."""
    line = Line(Gated(batch_size=1), max_size=4)
    for number in range(2):
        line.batcher.put(line.request(number))
    line.threads.start("engine", line.batcher.run)
    line.finish()
    assert line.engine.sizes == [1, 1]
    assert [request.batch_size for request, _ in line.done] == [1, 1]


def test_a_batch_waits_for_more_where_it_may() -> None:
    """Throughput for latency, by choice."""
    line = Line(Gated(), max_size=2, max_wait_ms=WAIT_S * 1000)
    line.batcher.put(line.request(0))
    line.engine.gate.set()
    line.threads.start("engine", line.batcher.run)
    line.batcher.put(line.request(1))
    line.finish()
    assert line.engine.sizes == [2]


def test_an_end_within_the_wait_infers_what_is_there() -> None:
    """A drain must not wait for frames that cannot come."""
    line = Line(Gated(), max_size=8, max_wait_ms=WAIT_S * 1000)
    line.batcher.put(line.request(0))
    line.threads.start("engine", line.batcher.run)
    line.finish()
    assert line.numbers() == [0]


def test_frames_whose_budget_is_used_up_are_not_inferred() -> None:
    """The others of the batch are."""
    line = Line(Gated(), max_size=3)
    long_ago_ns = clock.now_ns() - 10**9
    for number, received_ns in enumerate((None, long_ago_ns, None)):
        line.batcher.put(line.request(number, 999, received_ns))
    line.threads.start("engine", line.batcher.run)
    line.finish()
    assert line.numbers() == [0, 2]
    assert line.engine.sizes == [2]
    assert [(answer.id.sequence, answer.status) for answer in line.refused] == [(1, Status.EXPIRED)]


def test_a_model_that_fails_costs_its_batch_an_answer() -> None:
    """`failed`, with the reason; the next batch is another matter."""
    line = Line(Gated(error=InferenceError("out of range")), max_size=2)
    for number in range(2):
        line.batcher.put(line.request(number))
    line.threads.start("engine", line.batcher.run)
    line.finish()
    assert [(answer.status, answer.reason) for answer in line.refused] == [(Status.FAILED, "out of range")] * 2


def test_a_bug_in_an_engine_ends_its_thread_and_keeps_nobody_waiting() -> None:
    """The node then ends with its traceback, instead of hanging with a full queue."""
    line = Line(Gated(error=ZeroDivisionError("bug")))
    line.engine.gate.set()
    line.batcher.put(line.request(0))
    line.threads.start("engine", line.batcher.run)
    writing = threading.Thread(target=lambda: [line.batcher.put(line.request(n)) for n in range(50)])  # type: ignore[func-returns-value]
    writing.start()
    writing.join(WAIT_S)
    assert not writing.is_alive()
    line.batcher.close()
    with pytest.raises(ZeroDivisionError):
        line.threads.join(WAIT_S)

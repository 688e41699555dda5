"""The receiver of replies."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from edge.frame_record import FrameRecord
from edge.receiver import Receiver, decode_result
from edge.transports.transport import RawReply
from edge.workers.worker_directory import WorkerDirectory
from shared import clock
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels
from shared.messages.frame import ResultMessage, Status, pack_result, unpack_result
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.results import Classification, Detections, ModelResult, Result, Tensors
from shared.task import TASKS, task_named
from tests.edge.samples import CARD, HEIGHT, WIDTH, make_answer, make_frame, make_record, mark_sent
from tests.edge.vehicle import WAIT_S, Vehicle
from tests.support.memory_bus import MemoryBus
from tests.support.waiting import beside


def reply_of(payload: bytes, arrived_ns: int) -> RawReply:
    """Returns a reply as the MQTT transport does."""
    return RawReply(partial(unpack_result, payload), len(payload), arrived_ns)


class Station(Vehicle):
    """A vehicle with a receiver."""

    def __init__(self, bus: MemoryBus, folder: Path) -> None:
        super().__init__(bus, folder, CARD)
        self.masks: list[tuple[FrameRecord, npt.NDArray[np.uint8]]] = []
        self.ledger.listeners.append(self._ended)
        self.receiver = Receiver(self.transport, self.ledger, self.stop, CARD)

    def _ended(self, record: FrameRecord, answer: ModelResult | None) -> None:
        if answer is not None:
            assert isinstance(answer.result, np.ndarray)
            self.masks.append((record, answer.result))

    def receive(self, *payloads: bytes) -> list[dict[str, str]]:
        """Lets the receiver process these replies, and returns the rows."""
        for payload in payloads:
            self.transport.replies.put(reply_of(payload, clock.now_ns()))
        with beside(self.receiver.run):
            self.ledger.wait_until_idle(WAIT_S)
            self.stop.set()
        return self.rows()


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Station]:
    """Returns the receiver with its ledger."""
    with MemoryBus() as bus:
        made = Station(bus, tmp_path)
        with made.log:
            yield made


def _sent(station: Station) -> FrameRecord:
    record = mark_sent(station.ledger.begin(make_frame(), clock.now_ns() - 10**9))
    record.geometry = plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH)
    station.ledger.open(record)
    return record


def test_a_mask_is_passed_on_once(station: Station) -> None:
    """Repeated and malformed replies are counted."""
    record = _sent(station)
    reply = pack_result(make_answer(record))
    (row,) = station.receive(b"garbage", reply, reply, b"", reply[:50])
    assert (row["outcome"], row["bytes_down"]) == ("answered", str(len(reply)))
    assert int(row["t_sent_ns"]) < int(row["t_returned_ns"]) <= int(row["t_mask_decoded_ns"])
    ((passed_record, mask),) = station.masks
    assert passed_record is record
    np.testing.assert_array_equal(mask, np.ones((HEIGHT, WIDTH), np.uint8))
    ignored = Counter(station.ledger.counts().ignored_answers)
    assert ignored["unreadable"] + ignored["late_or_repeated"] <= 4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shape": (HEIGHT, WIDTH + 1)}, "mask cannot be used: 8×13 is the size of neither"),
        ({"shape": (16384, 4096), "codec": "rle"}, "mask cannot be used: 16384×4096"),
    ],
    ids=["wrong size", "huge"],
)
def test_an_invalid_mask_is_a_failure(station: Station, changes: dict[str, Any], reason: str) -> None:
    """The sinks do not validate masks, so they must not get this one."""
    (row,) = station.receive(pack_result(make_answer(_sent(station), **changes)))
    assert row["outcome"] == "failed"
    assert row["reason"].startswith(reason)
    assert not station.masks


def test_a_reply_that_waits_for_a_slow_sink_is_not_lost(station: Station) -> None:
    """It arrived in time; the delay is not the worker's."""
    records = [_sent(station) for _ in range(3)]
    arrived_ns = clock.now_ns()
    for record in records:
        record.lost_after_ns = arrived_ns + 1_000_000

    def slowly(*_: object) -> None:
        while clock.now_ns() < arrived_ns + 2_000_000:
            station.stop.wait(0.001)

    station.ledger.listeners.append(slowly)
    for record in records[:2]:
        station.transport.replies.put(reply_of(pack_result(make_answer(record)), arrived_ns))
    assert [row["outcome"] for row in station.receive()] == ["answered", "answered", "lost"]


@pytest.fixture
def record() -> FrameRecord:
    """A frame of 16×30 pixels, sent to a model of 8×12."""
    made = mark_sent(make_record(due_ns=clock.now_ns()))
    made.geometry = plan(Resize.CROP, 16, 30, HEIGHT, WIDTH)
    return made


def _detections(*boxes: tuple[float, ...]) -> Detections:
    count = len(boxes)
    array = np.array(boxes, np.float32).reshape(count, 4)
    return Detections(array, np.zeros(count, np.uint16), np.full(count, 0.5, np.float32))


RESULTS: dict[str, Result] = {
    "segmentation": np.ones((8, 12), np.uint8),
    "classification": Classification((2, 0), (0.75, 0.25)),
    "detection": _detections((0, 0, 30, 16), (3, 4, 5, 6)),
    "tensors": Tensors({"depth": np.arange(4, dtype=np.float32)}),
}


def _decode(message: ResultMessage, record: FrameRecord, task: str) -> tuple[Result | None, str]:
    """Decodes a reply for a model of a task, with three labels."""
    labels = Labels(("dark", "grey", "light"), ((0, 0, 0), (99, 99, 99), (255, 255, 255)))
    return decode_result(message, record, dataclasses.replace(CARD, task=task, labels=labels), WorkerDirectory("tiny"))


def _reply(record: FrameRecord, task: str, result: Result) -> ResultMessage:
    shape = (result.shape[0], result.shape[1]) if isinstance(result, np.ndarray) else None
    return make_answer(record, task=task, shape=shape, data=task_named(task).encode(result, "zstd"))


@pytest.mark.parametrize("task", TASKS)
def test_the_result_of_every_task_is_decoded(record: FrameRecord, task: str) -> None:
    """The result is exactly the one that the worker encoded."""
    expected = RESULTS[task]
    result, fault = _decode(_reply(record, task, expected), record, task)
    assert fault == ""
    assert result is not None
    assert task_named(task).encode(result, "raw") == task_named(task).encode(expected, "raw")


@pytest.mark.parametrize("task", TASKS)
def test_a_result_of_another_task_is_a_failure(record: FrameRecord, task: str) -> None:
    """The sinks were chosen for the task of the model card."""
    other = "detection" if task == "segmentation" else "segmentation"
    result, fault = _decode(_reply(record, other, RESULTS[other]), record, task)
    assert result is None
    assert fault == f"{task_named(task).result_name} cannot be used: its model answers a {other}"


@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, 0, 31, 5), (0, 0, 5, 17), (0, -3, 5, 5)])
def test_a_box_outside_the_frame_is_a_failure(record: FrameRecord, box: tuple[int, ...]) -> None:
    """A program that crops the frame by the box would read outside of it."""
    result, fault = _decode(_reply(record, "detection", _detections(box)), record, "detection")
    assert result is None
    assert "reaches over the frame's edge" in fault


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("changes", [{"data": b"\x81\x00"}, {"codec": "jpeg"}, {"data": b""}])
def test_malformed_data_is_a_failure(record: FrameRecord, task: str, changes: dict[str, Any]) -> None:
    """The fault names the kind of result that was expected."""
    message = replace(_reply(record, task, RESULTS[task]), **changes)
    result, fault = _decode(message, record, task)
    assert result is None
    assert fault.startswith(f"{task_named(task).result_name} cannot be used: ")


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.ANSWERED])
def test_a_refusal_has_no_result_and_no_fault(record: FrameRecord, status: Status) -> None:
    """The worker's reason is part of the message."""
    assert _decode(make_answer(record, status), record, "detection") == (None, "")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": "other"}, "mask cannot be used: it is of model other, not of tiny"),
        ({"model_sha256": "1" * 64}, "it is of version 1 with hash 111111111111, which no worker announced"),
        ({"model_version": "2"}, "it is of version 2 with hash 000000000000, which no worker announced"),
    ],
)
def test_a_result_of_another_model_is_a_failure(record: FrameRecord, changes: dict[str, Any], problem: str) -> None:
    """Its classes may mean something else, and it would be fused with those of the model of the run."""
    result, fault = _decode(
        replace(_reply(record, "segmentation", RESULTS["segmentation"]), **changes), record, "segmentation"
    )
    assert result is None
    assert problem in fault


def test_a_version_that_a_worker_announces_takes_the_place_of_the_first(record: FrameRecord) -> None:
    """Models are exchanged while vehicles drive; a version with other labels is another model."""
    workers = WorkerDirectory("tiny")
    second = dataclasses.replace(CARD, version="2", sha256="2" * 64)
    third = dataclasses.replace(CARD, version="3", sha256="3" * 64, labels=Labels(("a", "b"), ((0, 0, 0), (9, 9, 9))))
    workers.update("w", pack_status(NodeStatus(NodeState.ONLINE, "s9", 4, (second,))))
    workers.update("w", pack_status(NodeStatus(NodeState.ONLINE, "s9", 4, (third,))))
    answers = [make_answer(record, model_version=card.version, model_sha256=card.sha256) for card in (second, third)]
    faults = [decode_result(answer, record, CARD, workers)[1] for answer in answers]
    assert faults[0] == ""
    assert "whose input or labels differ from version 1, with which the run began" in faults[1]


@pytest.mark.parametrize("task", ["segmentation", "classification", "detection"])
def test_a_class_that_the_model_does_not_have_is_a_failure(record: FrameRecord, task: str) -> None:
    """It has no name and no colour, and a program that looks them up would fail."""
    impossible: dict[str, Result] = {
        "segmentation": np.full((8, 12), 200, np.uint8),
        "classification": Classification((200,), (0.5,)),
        "detection": dataclasses.replace(_detections((0, 0, 5, 5)), class_ids=np.array([200], np.uint16)),
    }
    result, fault = _decode(_reply(record, task, impossible[task]), record, task)
    assert result is None
    assert "class id 200 is over 2: the model has 3 labels" in fault

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edge.receiver import Receiver
from edge.reliability.ledger import FrameRecord, Ledger
from edge.transports.mqtt.transport import MqttTransport
from edge.transports.transport import Reply
from shared import clock
from shared.imaging import mask_codecs
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import pack_result, unpack_result
from shared.messages.model_card import Task
from shared.mqtt.bus import MemoryBus
from shared.runlog.latency_log import LogWriter, read_rows

Make = Callable[..., Any]
WAIT_S = 60.0
HEIGHT, WIDTH = 8, 12


def reply_of(payload: bytes, came_ns: int) -> Reply:
    """An answer as MQTT brings it."""
    return Reply(partial(unpack_result, payload), len(payload), came_ns)


class Desk:
    """A receiver over a bus in memory."""

    def __init__(self, bus: MemoryBus, folder: Path) -> None:
        self.folder = folder
        self.log = LogWriter(folder)
        self.ledger = Ledger(self.log, vehicle="car", session="s1", model="tiny")
        self.transport = MqttTransport(bus, vehicle="car", session="s1", model="tiny")
        self.masks: list[tuple[FrameRecord, npt.NDArray[np.uint8]]] = []
        self.stop = threading.Event()
        self.receiver = self.serve(lambda journey, _, mask: self.masks.append((journey, mask)))

    def serve(self, on_result: Callable[..., None], task: Task = Task.SEGMENTATION) -> Receiver:
        """A receiver that hands its results to `on_result`."""
        return Receiver(self.transport, self.ledger, on_result, self.stop, task)

    def take(self, *payloads: bytes) -> list[dict[str, str]]:
        """Have the receiver read these replies; the rows afterwards."""
        for payload in payloads:
            self.transport.replies.put(reply_of(payload, clock.now_ns()))
        thread = threading.Thread(target=self.receiver.run)
        thread.start()
        self.ledger.wait_until_idle(WAIT_S)
        self.stop.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        return list(read_rows(self.folder))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """The receiver."""
    with MemoryBus() as bus:
        made = Desk(bus, tmp_path)
        with made.log:
            yield made


@pytest.fixture
def journey(desk: Desk, frame: Make, send: Make) -> FrameRecord:
    """A frame of the model's size, sent."""
    return _sent(desk, frame, send)


def _sent(desk: Desk, frame: Make, send: Make, size: tuple[int, int] = (HEIGHT, WIDTH)) -> FrameRecord:
    journey: FrameRecord = send(desk.ledger.begin(frame(), clock.now_ns() - 10**9))
    journey.geometry = plan(Resize.CROP, *size, HEIGHT, WIDTH)
    desk.ledger.open(journey)
    return journey


def test_an_answers_mask_is_handed_on_once(desk: Desk, frame: Make, send: Make, answer: Make) -> None:
    """Repeated, garbled and foreign replies beside it are counted."""
    journey = _sent(desk, frame, send)
    reply = pack_result(answer(journey))
    (row,) = desk.take(b"garbage", reply, reply, b"", reply[:50])
    assert (row["outcome"], row["bytes_down"]) == ("answered", str(len(reply)))
    assert int(row["t_sent_ns"]) < int(row["t_returned_ns"]) <= int(row["t_mask_decoded_ns"])
    ((handed, mask),) = desk.masks
    assert handed is journey
    np.testing.assert_array_equal(mask, np.ones((HEIGHT, WIDTH), np.uint8))
    ignored = Counter(desk.ledger.tally().ignored_answers)
    assert ignored["unreadable"] + ignored["late_or_repeated"] <= 4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": b"\x00"}, "mask cannot be used"),
        ({"codec": "jpeg"}, "mask cannot be used"),
        ({"shape": (HEIGHT, WIDTH + 1)}, "mask cannot be used: 8×13 is the size of neither"),
        ({"shape": (16384, 4096), "codec": "rle"}, "mask cannot be used: 16384×4096"),
    ],
    ids=["damaged", "lossy", "another size", "a bomb"],
)
def test_a_mask_that_cannot_be_used_is_a_failure(
    desk: Desk, journey: FrameRecord, answer: Make, changes: dict[str, Any], reason: str
) -> None:
    """And no mask is handed on; the sinks trust what they get."""
    (row,) = desk.take(pack_result(answer(journey, **changes)))
    assert row["outcome"] == "failed"
    assert row["reason"].startswith(reason)
    assert not desk.masks


def test_a_mask_of_the_frames_own_size_is_taken(desk: Desk, frame: Make, send: Make, answer: Make) -> None:
    """It was asked for so."""
    journey = _sent(desk, frame, send, (30, 40))
    data = mask_codecs.encode(np.zeros((30, 40), np.uint8), "rle")
    (row,) = desk.take(pack_result(answer(journey, shape=(30, 40), data=data, codec="rle")))
    assert row["outcome"] == "answered"
    assert desk.masks[0][1].shape == (30, 40)


def test_an_answer_that_waits_behind_a_slow_sink_is_not_lost(desk: Desk, frame: Make, send: Make, answer: Make) -> None:
    """It came in time; that nobody has looked at it yet is not its worker's silence."""
    journeys = [_sent(desk, frame, send) for _ in range(3)]
    came_ns = clock.now_ns()
    for journey in journeys:
        journey.given_up_ns = came_ns + 1_000_000

    def slowly(*_: object) -> None:
        while clock.now_ns() < came_ns + 2_000_000:
            desk.stop.wait(0.001)

    desk.receiver = desk.serve(slowly)
    for journey in journeys[:2]:
        desk.transport.replies.put(reply_of(pack_result(answer(journey)), came_ns))
    assert [row["outcome"] for row in desk.take()] == ["answered", "answered", "lost"]

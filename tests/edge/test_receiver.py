"""The receiver of replies."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edge.config import EdgeConfig
from edge.receiver import Receiver
from edge.reliability.ledger import FrameRecord, Ledger
from edge.transports.messages import RawReply
from edge.transports.mqtt.transport import MqttTransport
from shared import clock
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import pack_result, unpack_result
from shared.mqtt.bus import MemoryBus
from shared.runlog.latency_log import LogWriter, read_rows

Make = Callable[..., Any]
WAIT_S = 60.0
HEIGHT, WIDTH = 8, 12


def reply_of(payload: bytes, arrived_ns: int) -> RawReply:
    """Returns a reply as the MQTT transport does."""
    return RawReply(partial(unpack_result, payload), len(payload), arrived_ns)


class Station:
    """A receiver with its ledger, on an in-memory bus."""

    def __init__(self, bus: MemoryBus, folder: Path) -> None:
        self.folder = folder
        self.log = LogWriter(folder)
        self.ledger = Ledger(self.log, EdgeConfig(vehicle="car", model="tiny"), "s1")
        self.transport = MqttTransport(bus, EdgeConfig(vehicle="car", model="tiny"), "s1")
        self.masks: list[tuple[FrameRecord, npt.NDArray[np.uint8]]] = []
        self.stop = threading.Event()
        self.receiver = self.serve(lambda record, _, mask: self.masks.append((record, mask)))

    def serve(self, on_result: Callable[..., None], task: str = "segmentation") -> Receiver:
        """Returns a receiver that passes its results to `on_result`."""
        return Receiver(self.transport, self.ledger, on_result, self.stop, task)

    def receive(self, *payloads: bytes) -> list[dict[str, str]]:
        """Lets the receiver process these replies, and returns the rows."""
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
def station(tmp_path: Path) -> Iterator[Station]:
    """Returns the receiver with its ledger."""
    with MemoryBus() as bus:
        made = Station(bus, tmp_path)
        with made.log:
            yield made


@pytest.fixture
def record(station: Station, frame: Make, send: Make) -> FrameRecord:
    """Returns a sent frame of the model's size."""
    return _sent(station, frame, send)


def _sent(station: Station, frame: Make, send: Make, size: tuple[int, int] = (HEIGHT, WIDTH)) -> FrameRecord:
    record: FrameRecord = send(station.ledger.begin(frame(), clock.now_ns() - 10**9))
    record.geometry = plan(Resize.CROP, *size, HEIGHT, WIDTH)
    station.ledger.open(record)
    return record


def test_a_mask_is_passed_on_once(station: Station, frame: Make, send: Make, answer: Make) -> None:
    """Repeated and malformed replies are counted."""
    record = _sent(station, frame, send)
    reply = pack_result(answer(record))
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
        ({"data": b"\x00"}, "mask cannot be used"),
        ({"codec": "jpeg"}, "mask cannot be used"),
        ({"shape": (HEIGHT, WIDTH + 1)}, "mask cannot be used: 8×13 is the size of neither"),
        ({"shape": (16384, 4096), "codec": "rle"}, "mask cannot be used: 16384×4096"),
    ],
    ids=["damaged", "lossy codec", "wrong size", "huge"],
)
def test_an_invalid_mask_is_a_failure(
    station: Station, record: FrameRecord, answer: Make, changes: dict[str, Any], reason: str
) -> None:
    """The sinks do not validate masks, so they must not get this one."""
    (row,) = station.receive(pack_result(answer(record, **changes)))
    assert row["outcome"] == "failed"
    assert row["reason"].startswith(reason)
    assert not station.masks


def test_a_reply_that_waits_for_a_slow_sink_is_not_lost(
    station: Station, frame: Make, send: Make, answer: Make
) -> None:
    """It arrived in time; the delay is not the worker's."""
    records = [_sent(station, frame, send) for _ in range(3)]
    arrived_ns = clock.now_ns()
    for record in records:
        record.lost_after_ns = arrived_ns + 1_000_000

    def slowly(*_: object) -> None:
        while clock.now_ns() < arrived_ns + 2_000_000:
            station.stop.wait(0.001)

    station.receiver = station.serve(slowly)
    for record in records[:2]:
        station.transport.replies.put(reply_of(pack_result(answer(record)), arrived_ns))
    assert [row["outcome"] for row in station.receive()] == ["answered", "answered", "lost"]

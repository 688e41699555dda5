"""Anybody may publish anything: the sender is told why, and nobody else feels it."""

import queue
from collections.abc import Callable
from uuid import uuid4

import msgpack
import pytest
from msgspec.structs import asdict, replace

from edge.reliability.worker_directory import Workers
from shared.imaging import mask_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import FrameMessage, ResultMessage, Status, pack_frame, unpack_result
from shared.messages.topics import FRAMES, MASKS, WORKER_STATUS, FrameId
from shared.mqtt.bus import Bus, MemoryBus, Properties
from tests.bad_input.worker import HEIGHT, WAIT_S, WIDTH, bus_of, working


class Sender:
    """A vehicle that publishes whatever it likes, and reads what comes back."""

    def __init__(self, bus: Bus, vehicle: str = "car") -> None:
        self._bus = bus
        self._topic = FRAMES.of(model="tiny", vehicle=vehicle, camera="left")
        self._answers: queue.SimpleQueue[ResultMessage] = queue.SimpleQueue()
        self.frame = FrameMessage(
            id=FrameId(vehicle, "left", "s1", 1),
            model="tiny",
            layout=Layout.RGB8,
            shape=(HEIGHT, WIDTH, 3),
            codec="raw",
            geometry=plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
            frame_stamp_ns=0,
            data=bytes(HEIGHT * WIDTH * 3),
        )
        bus.subscribe(
            MASKS.filter(vehicle=vehicle), 1, lambda delivery: self._answers.put(unpack_result(delivery.payload))
        )

    def send(
        self, payload: bytes, *, correlation: bytes | None = b"car/left/s1/1", response: str | None = None
    ) -> None:
        """Publish a payload on the frames topic."""
        properties = Properties(correlation=correlation, response_topic=response)
        self._bus.publish(self._topic, payload, qos=1, properties=properties)

    def answer(self) -> ResultMessage:
        """The next answer."""
        return self._answers.get(timeout=WAIT_S)

    def is_served(self) -> bool:
        """Whether a proper frame is answered, and next."""
        frame = replace(self.frame, id=replace(self.frame.id, sequence=999))
        self.send(pack_frame(frame), correlation=str(frame.id).encode())
        answer = self.answer()
        assert answer.shape is not None
        mask = mask_codecs.decode(answer.data, answer.codec, answer.shape)
        return answer.id == frame.id and answer.status is Status.ANSWERED and mask.shape == (HEIGHT, WIDTH)


def _changed(frame: FrameMessage, **changes: object) -> bytes:
    packed: bytes = msgpack.packb(msgpack.unpackb(pack_frame(frame)) | changes)
    return packed


MALFORMED: dict[str, tuple[Callable[[FrameMessage], bytes], str]] = {
    "garbage": (lambda _: b"\x00garbage", "map"),
    "nothing": (lambda _: b"", "MessagePack"),
    "half": (lambda frame: pack_frame(frame)[:200], "MessagePack"),
    "another version": (lambda frame: _changed(frame, v=9), "version 9 is not spoken here: speak 1"),
    "an id that is a number": (lambda frame: _changed(frame, id=7), "'id'"),
    "another vehicle's id": (lambda frame: _changed(frame, id="bus/left/s1/1"), "must be those of its topic"),
    "another camera's id": (lambda frame: _changed(frame, id="car/right/s1/1"), "must be those of its topic"),
    "another model": (lambda frame: _changed(frame, model="huge"), "must be those of its topic"),
    "too few pixels": (lambda frame: _changed(frame, data=b"\x00"), "bytes"),
    "another size": (
        lambda frame: _changed(frame, shape=[8, 8, 3], data=bytes(192)), "model tiny takes 16×24×3",
    ),
    "a huge size": (lambda frame: _changed(frame, shape=[16384, 16384, 3]), "model tiny takes"),
    "no codec": (lambda frame: _changed(frame, codec="pickle"), "pickle"),
    "no mask codec": (lambda frame: _changed(frame, want={"mask_codec": "jpeg", "size": "model"}), "no mask codec"),
    "a jpeg that is none": (lambda frame: _changed(frame, codec="jpeg"), "send a JPEG or a PNG"),
    "a zstd that is none": (lambda frame: _changed(frame, codec="zstd"), "zstd"),
    "a foreign geometry": (
        lambda frame: _changed(frame, geometry=asdict(plan(Resize.CROP, 64, 64, 32, 32))), "geometry ends at",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_message_is_rejected_and_the_next_frame_served(kind: str) -> None:
    """Anybody may publish anything: the sender is told why, and nobody else feels it."""
    make, reason = MALFORMED[kind]
    with MemoryBus() as bus, working(bus):
        sender = Sender(bus)
        sender.send(make(sender.frame))
        answer = sender.answer()
        assert (answer.status, str(answer.id)) == (Status.REJECTED, "car/left/s1/1")
        assert reason in answer.reason
        assert sender.is_served()


def test_malformed_messages_are_rejected_over_a_real_broker(mosquitto_url: str) -> None:
    """The correlation data, which alone tells whose a broken message is, comes through Mosquitto."""
    with bus_of(mosquitto_url) as bus, working(bus_of(mosquitto_url)):
        workers = Workers()
        bus.subscribe(WORKER_STATUS.filter(), WORKER_STATUS.qos, workers.announced)
        assert workers.wait_until_serves("tiny", WAIT_S)  # Before, there may be nobody who hears the message.
        vehicle = f"car-{uuid4().hex[:6]}"
        sender = Sender(bus, vehicle)
        sender.send(b"\xc1", correlation=f"{vehicle}/left/s1/5".encode())
        answer = sender.answer()
        assert (answer.status, answer.id.sequence) == (Status.REJECTED, 5)
        assert sender.is_served()


@pytest.mark.parametrize("correlation", [None, b"", b"\xff", b"bus/left/s1/1", b"car/right/s1/1", b"x" * 5000])
def test_what_tells_nobody_whose_it_is_is_counted(correlation: bytes | None) -> None:
    """Answering under a foreign id would put a refusal into another vehicle's log."""
    with MemoryBus() as bus, working(bus) as node:
        sender = Sender(bus)
        sender.send(b"\xc1", correlation=correlation)
        assert sender.is_served()
        assert node.counts == {"unreadable": 1, "answered": 1}


def test_a_foreign_response_topic_is_refused() -> None:
    """Or a vehicle could have a worker write wherever the worker may."""
    with MemoryBus() as bus, working(bus):
        sender = Sender(bus)
        stolen: list[object] = []
        bus.subscribe("skylane/v1/masks/bus/left", 1, stolen.append)
        sender.send(pack_frame(sender.frame), response="skylane/v1/masks/bus/left")
        answer = sender.answer()
        assert answer.status is Status.REJECTED
        assert answer.reason == "the response topic must be skylane/v1/masks/car/left"
        assert sender.is_served()
        assert not stolen


def test_a_mask_that_the_way_back_does_not_take_is_refused() -> None:
    """A packet over the broker's limit would cut the worker off, and again at every reconnect."""
    with MemoryBus() as bus:
        bus.max_payload_bytes = 70_000
        with working(bus):
            sender = Sender(bus)
            large = asdict(plan(Resize.CROP, 300, 400, HEIGHT, WIDTH))
            sender.send(_changed(sender.frame, geometry=large, want={"mask_codec": "raw", "size": "frame"}))
            answer = sender.answer()
            assert answer.status is Status.REJECTED
            assert "ask for another mask codec or size" in answer.reason
            assert sender.is_served()

import queue
from collections.abc import Callable
from uuid import uuid4

import msgpack
import pytest
from msgspec.structs import asdict, replace

from edge.workers.worker_directory import WorkerDirectory
from shared.imaging import image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import FrameMessage, ResultMessage, Status, pack_frame, unpack_result
from shared.messages.topics import FRAMES, MASKS, WORKER_STATUS, FrameId
from shared.mqtt.bus import Bus, Properties
from tests.bad_input.worker import working
from tests.pipeline.rig import WAIT_S, connect
from tests.support.memory_bus import MemoryBus
from tests.support.tiny_model import HEIGHT, WIDTH


class Sender:
    """A vehicle that can publish arbitrary payloads and receives the replies."""

    def __init__(self, bus: Bus, vehicle: str = "car") -> None:
        self._bus = bus
        self._topic = FRAMES.of(model="tiny", vehicle=vehicle, camera="left")
        self._replies: queue.SimpleQueue[ResultMessage] = queue.SimpleQueue()
        self.frame = FrameMessage(
            id=FrameId(vehicle, "left", "s1", 1),
            model="tiny",
            layout=Layout.RGB8,
            shape=(HEIGHT, WIDTH, 3),
            codec="raw",
            geometry=plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
            stamp_ns=0,
            data=bytes(HEIGHT * WIDTH * 3),
        )
        bus.subscribe(
            MASKS.filter(vehicle=vehicle), 1, lambda delivery: self._replies.put(unpack_result(delivery.payload))
        )

    def send(
        self, payload: bytes, *, correlation: bytes | None = b"car/left/s1/1", response: str | None = None
    ) -> None:
        """Publishes a payload on the frames topic."""
        properties = Properties(correlation=correlation, response_topic=response)
        self._bus.publish(self._topic, payload, qos=1, properties=properties)

    def reply(self) -> ResultMessage:
        """Returns the next reply."""
        return self._replies.get(timeout=WAIT_S)

    def is_served(self) -> bool:
        """Sends a valid frame and returns whether the next reply is its result."""
        frame = replace(self.frame, id=replace(self.frame.id, sequence=999))
        self.send(pack_frame(frame), correlation=str(frame.id).encode())
        reply = self.reply()
        assert reply.shape is not None
        mask = image_codecs.decode_mask(reply.data, reply.codec, reply.shape)
        return reply.id == frame.id and reply.status is Status.ANSWERED and mask.shape == (HEIGHT, WIDTH)


def _changed(frame: FrameMessage, **changes: object) -> bytes:
    packed: bytes = msgpack.packb(msgpack.unpackb(pack_frame(frame)) | changes)
    return packed


MALFORMED: dict[str, tuple[Callable[[FrameMessage], bytes], str]] = {
    "garbage": (lambda _: b"\x00garbage", "map"),
    "nothing": (lambda _: b"", "MessagePack"),
    "half": (lambda frame: pack_frame(frame)[:200], "MessagePack"),
    "another version": (lambda frame: _changed(frame, v=9), "version 9 is not supported: send version 1"),
    "an id that is a number": (lambda frame: _changed(frame, id=7), "'id'"),
    "another vehicle's id": (lambda frame: _changed(frame, id="bus/left/s1/1"), "must be those of its topic"),
    "another camera's id": (lambda frame: _changed(frame, id="car/right/s1/1"), "must be those of its topic"),
    "another model": (lambda frame: _changed(frame, model="huge"), "must be those of its topic"),
    "too few pixels": (lambda frame: _changed(frame, data=b"\x00"), "bytes"),
    "another size": (
        lambda frame: _changed(frame, shape=[8, 8, 3], data=bytes(192)), "model tiny needs 4×6×3",
    ),
    "a huge size": (lambda frame: _changed(frame, shape=[16384, 16384, 3]), "model tiny needs"),
    "no codec": (lambda frame: _changed(frame, codec="pickle"), "pickle"),
    "no mask codec": (lambda frame: _changed(frame, want={"mask_codec": "jpeg", "size": "model"}), "no mask codec"),
    "invalid jpeg": (lambda frame: _changed(frame, codec="jpeg"), "send a JPEG or a PNG"),
    "invalid zstd": (lambda frame: _changed(frame, codec="zstd"), "zstd"),
    "a foreign geometry": (
        lambda frame: _changed(frame, geometry=asdict(plan(Resize.CROP, 64, 64, 32, 32))), "geometry ends at",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_message_is_rejected_and_the_next_frame_processed(case: str) -> None:
    """The sender receives the reason, and other frames are not affected."""
    make, reason = MALFORMED[case]
    with MemoryBus() as bus, working(bus):
        sender = Sender(bus)
        sender.send(make(sender.frame))
        reply = sender.reply()
        assert (reply.status, str(reply.id)) == (Status.REJECTED, "car/left/s1/1")
        assert reason in reply.reason
        assert sender.is_served()


def test_malformed_message_is_rejected_over_mosquitto(mosquitto_url: str) -> None:
    """A broken message is identified by its correlation data alone."""
    with connect(mosquitto_url) as bus, working(connect(mosquitto_url)):
        workers = WorkerDirectory("tiny")
        bus.subscribe(WORKER_STATUS.filter(), WORKER_STATUS.qos, workers.announced)
        assert workers.wait_until_served(WAIT_S)  # Before that, the message may reach no worker.
        vehicle = f"car-{uuid4().hex[:6]}"
        sender = Sender(bus, vehicle)
        sender.send(b"\xc1", correlation=f"{vehicle}/left/s1/5".encode())
        reply = sender.reply()
        assert (reply.status, reply.id.sequence) == (Status.REJECTED, 5)
        assert sender.is_served()


@pytest.mark.parametrize("correlation", [None, b"", b"\xff", b"bus/left/s1/1", b"car/right/s1/1", b"x" * 5000])
def test_message_without_valid_sender_is_only_counted(correlation: bytes | None) -> None:
    """A reply under another vehicle's id would appear in that vehicle's log."""
    with MemoryBus() as bus, working(bus) as node:
        sender = Sender(bus)
        sender.send(b"\xc1", correlation=correlation)
        assert sender.is_served()
        assert node.counts == {"unreadable": 1, "answered": 1}


def test_foreign_response_topic_is_rejected() -> None:
    """Otherwise a vehicle could make a worker publish to any topic."""
    with MemoryBus() as bus, working(bus):
        sender = Sender(bus)
        stolen: list[object] = []
        bus.subscribe("skylane/v1/masks/bus/left", 1, stolen.append)
        sender.send(pack_frame(sender.frame), response="skylane/v1/masks/bus/left")
        reply = sender.reply()
        assert reply.status is Status.REJECTED
        assert reply.reason == "the response topic must be skylane/v1/masks/car/left"
        assert sender.is_served()
        assert not stolen


def test_mask_above_the_packet_limit_is_rejected() -> None:
    """The broker would disconnect the worker, again after each reconnect."""
    with MemoryBus() as bus:
        bus.max_payload_bytes = 70_000
        with working(bus):
            sender = Sender(bus)
            large = asdict(plan(Resize.CROP, 300, 400, HEIGHT, WIDTH))
            sender.send(_changed(sender.frame, geometry=large, want={"mask_codec": "raw", "size": "frame"}))
            reply = sender.reply()
            assert reply.status is Status.REJECTED
            assert "ask for another mask codec or size" in reply.reason
            assert sender.is_served()

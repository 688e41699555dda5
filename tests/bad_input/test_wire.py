import queue
from uuid import uuid4

from msgspec.structs import replace

from edge.workers.worker_directory import WorkerDirectory
from shared.imaging import image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status, pack_frame, unpack_result
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

    def send(self, payload: bytes, *, correlation: bytes | None = b"car/left/s1/1") -> None:
        """Publishes a payload on the frames topic."""
        self._bus.publish(self._topic, payload, qos=1, properties=Properties(correlation=correlation))

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


def test_messages_without_a_valid_sender_are_only_counted() -> None:
    """A reply under another vehicle's id would appear in that vehicle's log."""
    senders = [None, b"", b"\xff", b"bus/left/s1/1", b"car/right/s1/1", b"x" * 5000]
    with MemoryBus() as bus, working(bus) as node:
        sender = Sender(bus)
        for correlation in senders:
            sender.send(b"\xc1", correlation=correlation)
        assert sender.is_served()
        assert node.counts == {"unreadable": len(senders), "answered": 1}


def test_mask_above_the_packet_limit_is_rejected() -> None:
    """The broker would disconnect the worker, again after each reconnect."""
    with MemoryBus() as bus:
        bus.max_payload_bytes = 70_000
        with working(bus):
            sender = Sender(bus)
            large = plan(Resize.CROP, 300, 400, HEIGHT, WIDTH)
            sender.send(pack_frame(replace(sender.frame, geometry=large, options=RequestOptions("raw", "frame"))))
            reply = sender.reply()
            assert reply.status is Status.REJECTED
            assert "ask for another mask codec or size" in reply.reason
            assert sender.is_served()

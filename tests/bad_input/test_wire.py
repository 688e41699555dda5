"""Frames that a worker cannot answer: the next one is answered."""

import threading

import numpy as np
from msgspec.structs import replace

from ops.broker.broker import Broker
from shared.imaging import image_codecs
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import RequestOptions, Status
from shared.messages.topics import FRAMES, WORKER_STATUS, FrameId
from shared.mqtt.bus import Bus, Properties
from tests.pipeline.rig import connect
from tests.support.gateway import WAIT_S, Sender, memory_bus, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model


def send_garbage(bus: Bus, correlation: bytes | None) -> None:
    """Publishes a payload that is no message."""
    topic = FRAMES.of(model="tiny", vehicle="car", camera="left")
    bus.publish(topic, b"\xc1", qos=1, properties=Properties(correlation=correlation))


def check_served(sender: Sender) -> None:
    """Checks that a valid frame is answered with its mask."""
    reply = sender.answer_to(frame(99))
    assert reply.status is Status.ANSWERED
    assert (np.asarray(image_codecs.decode_mask(reply.data, reply.codec, (HEIGHT, WIDTH))) == 99).all()


def test_malformed_message_is_rejected_over_mosquitto(mosquitto_broker: Broker) -> None:
    """A broken message is identified by its correlation data alone."""
    with (
        connect(mosquitto_broker.url) as bus,
        open_gateway(model(), http=None, bus=connect(mosquitto_broker.url)),
    ):
        online = threading.Event()
        bus.subscribe(WORKER_STATUS.filter(), 1, lambda _: online.set())
        assert online.wait(WAIT_S)  # Before that, a message may reach no worker.
        sender = Sender(bus)
        send_garbage(bus, b"car/left/s1/5")
        (reply,) = sender.replies(1)
        assert (reply.status, reply.id) == (Status.REJECTED, FrameId("car", "left", "s1", 5))
        check_served(sender)


def test_messages_without_a_valid_sender_are_only_counted() -> None:
    """A reply under another vehicle's id would appear in that vehicle's log."""
    correlations = (None, b"", b"\xff", b"bus/left/s1/1", b"car/right/s1/1", b"x" * 5000)
    with open_gateway(model(), http=None) as worker:
        for correlation in correlations:
            send_garbage(worker.bus, correlation)
        check_served(Sender(worker.bus))
        assert worker.node.counts == {"unreadable": len(correlations), "answered": 1}


def test_mask_above_the_packet_limit_is_rejected() -> None:
    """The broker would disconnect the worker, again after each reconnect."""
    large = plan(Resize.CROP, 300, 400, HEIGHT, WIDTH)
    with memory_bus() as bus:
        bus.max_payload_bytes = 70_000
        with open_gateway(model(), http=None, bus=bus):
            sender = Sender(bus)
            reply = sender.answer_to(replace(frame(1), geometry=large, options=RequestOptions("raw", "frame")))
            assert reply.status is Status.REJECTED
            assert "ask for another mask codec or size" in reply.reason
            check_served(sender)

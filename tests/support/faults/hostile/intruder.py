"""A foreign MQTT client that publishes anything anywhere and records everything that it receives."""

import threading
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from shared.messages.frame import FRAME_CONTENT_TYPE, pack_frame
from shared.messages.topics import PREFIX, FrameId
from shared.mqtt.broker_options import BrokerOptions
from shared.mqtt.bus import Ack, Delivery, Properties
from tests.support.faults.hostile.messages import black_frame
from tests.support.faults.rig import HEIGHT, MODEL, WIDTH, RigError

CAMERA = "left"
_ANSWER_S = 10.0
_VERSION = b"\xa1v\x01"  # Protocol version in an encoded message.
_OTHER_VERSION = b"\xa1v\x63"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A publication of an intruder, below the protocol's prefix."""

    what: str
    topic: str
    payload: bytes = b"x"
    response_topic: str | None = None
    frame_id: FrameId | None = None  # The frame whose rejection is expected.


class Intruder(AbstractContextManager["Intruder"]):
    """A client that is connected and subscribed to everything, until the end of the block."""

    def __init__(self, url: str, name: str, certs: Path | None, client_id: str | None = None) -> None:
        """Connects; `name` selects its certificate in `certs`.

        Raises:
            SkylaneError: the broker refuses the connection.
        """
        self.received: list[Delivery] = []
        self._bus = BrokerOptions(url, certs=certs).open(client_id or f"intruder-{uuid.uuid4().hex}", None, name=name)

    def listen(self, topic_filter: str) -> None:
        """Subscribes; the broker decides whether messages are delivered."""
        self._bus.subscribe(topic_filter, 1, self.received.append)

    def publish(self, attempt: Attempt) -> Ack:
        """Publishes and waits for the broker's acknowledgement.

        Raises:
            RigError: no acknowledgement arrived.
        """
        said: list[Ack] = []
        has_said = threading.Event()

        def acknowledged(ack: Ack) -> None:
            said.append(ack)
            has_said.set()

        self._bus.publish(
            f"{PREFIX}/{attempt.topic}",
            attempt.payload,
            qos=1,
            properties=Properties(
                content_type=FRAME_CONTENT_TYPE,
                response_topic=attempt.response_topic,
                correlation=str(attempt.frame_id).encode() if attempt.frame_id else None,
            ),
            acknowledged=acknowledged,
        )
        if not has_said.wait(_ANSWER_S):
            raise RigError(f"no acknowledgement of the broker for {attempt.what}")
        return said[0]

    def close(self) -> None:
        """Disconnects."""
        self._bus.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def fresh_id(vehicle: str) -> FrameId:
    """Returns a new frame id of a vehicle."""
    return FrameId(vehicle, CAMERA, uuid.uuid4().hex[:12], 0)


def frame(frame_id: FrameId, *, model: str = MODEL, other_version: bool = False) -> bytes:
    """Returns an encoded frame; with `other_version`, of a protocol version that does not exist."""
    packed = pack_frame(black_frame(frame_id, model, HEIGHT, WIDTH))
    return packed.replace(_VERSION, _OTHER_VERSION, 1) if other_version else packed

"""A client that is none of ours: it says what it likes where it likes, and keeps all that it is told."""

import threading
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.faults.hostile.frames import black_frame
from bench.faults.rig.rig import HEIGHT, MODEL, WIDTH, RigError
from shared.messages.frame import FRAME_CONTENT_TYPE, pack_frame
from shared.messages.topics import PREFIX, FrameId
from shared.mqtt.bus import Ack, Delivery, Properties
from shared.network.broker_options import BrokerOptions

CAMERA = "left"
_ANSWER_S = 10.0
_VERSION = b"\xa1v\x01"  # How every message says which version of the protocol it is.
_OTHER_VERSION = b"\xa1v\x63"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Something that an intruder publishes, under the protocol's prefix."""

    what: str
    topic: str
    payload: bytes = b"x"
    response_topic: str | None = None
    frame_id: FrameId | None = None  # Whose refusal is waited for.


class Intruder(AbstractContextManager["Intruder"]):
    """Connected, and subscribed to all there is, from the constructor to the end of the block."""

    def __init__(self, url: str, name: str, certs: Path | None, client_id: str | None = None) -> None:
        """`name`: whom it may be, by its certificate in `certs`.

        Raises:
            SkylaneError: the broker does not let it in.
        """
        self.came: list[Delivery] = []
        self._bus = BrokerOptions(url, certs=certs).open(client_id or f"intruder-{uuid.uuid4().hex}", None, name=name)

    def listen(self, topic_filter: str) -> None:
        """Ask for messages; whether any come is the broker's to say."""
        self._bus.subscribe(topic_filter, 1, self.came.append)

    def publish(self, attempt: Attempt) -> Ack:
        """Publish, and wait for what the broker says to that.

        Raises:
            RigError: it says nothing.
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
            raise RigError(f"the broker says nothing to {attempt.what}")
        return said[0]

    def close(self) -> None:
        """Leave."""
        self._bus.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def fresh_id(vehicle: str) -> FrameId:
    """The id of a frame that nobody has sent."""
    return FrameId(vehicle, CAMERA, uuid.uuid4().hex[:12], 0)


def frame(frame_id: FrameId, *, model: str = MODEL, other_version: bool = False) -> bytes:
    """A frame as it is on the wire; `other_version`: of the protocol, one that does not exist."""
    packed = pack_frame(black_frame(frame_id, model, HEIGHT, WIDTH))
    return packed.replace(_VERSION, _OTHER_VERSION, 1) if other_version else packed

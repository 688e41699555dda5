"""Skylane among the peers: one worker with all its doors, and the vehicle's own transports to them."""

import queue
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from bench.door_site import DOORS, MQTT, DoorSite
from bench.peers.client import PATIENCE_S, Answer, Client, PeerError
from bench.peers.process_tree import ProcessTree
from bench.peers.work import Job
from edge.transports.mqtt import MqttTransport
from edge.transports.transport import Transport
from shared import results
from shared.connection import Connection
from shared.messages import Status, Want, pack_frame, unpack_mask
from shared.stages import Stage
from shared.topics import FrameId

_CAMERA = "front"
_WANT = Want(mask_codec="raw")  # As the peers send their masks.
_ENGINE = "tensorflow"


class SkylaneClient:
    """A vehicle with one camera and one frame in flight, by any of the vehicle's transports."""

    def __init__(self, transport: Transport, vehicle: str) -> None:
        self._transport = transport
        self._vehicle = vehicle
        self._session = uuid.uuid4().hex[:12]
        self._numbers = count()
        self._unreachable: str | None = None

    def ask(self, job: Job) -> Answer:
        """As `Client.ask`."""
        frame_id = FrameId(self._vehicle, _CAMERA, self._session, next(self._numbers))
        message = replace(job.frame, id=frame_id, want=_WANT, stamps=())
        self._transport.send(message, pack_frame(message), self._lost)
        try:
            reply = self._transport.replies.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise PeerError(f"no answer within {PATIENCE_S:g} s") from None
        if reply is None:
            raise PeerError(f"the frame reached nobody: {self._unreachable}")
        answer = unpack_mask(reply.payload)
        if answer.status is not Status.ANSWERED:
            raise PeerError(f"{answer.status}: {answer.reason}")
        mask = results.decode(answer.task, answer.data, answer.codec, answer.shape)
        assert isinstance(mask, np.ndarray)
        at_ns = {stamp.stage: stamp.at_ns for stamp in answer.stamps}
        return Answer(mask, at_ns[Stage.INFERRED] - at_ns[Stage.BATCHED])

    def close(self) -> None:
        """As `Client.close`."""
        self._transport.close()

    def _lost(self, reason: str) -> None:
        self._unreachable = reason
        self._transport.replies.put(None)


def opened(stack: ExitStack, models: Path, model: str) -> tuple[ProcessTree, dict[str, Callable[[], Client]]]:
    """A worker with its broker, up until the stack is closed; and by door how to connect.

    Raises:
        SkylaneError: it did not get ready.
    """
    site = stack.enter_context(DoorSite(models=models, model=model, engine=_ENGINE))
    tree = ProcessTree([site.worker.pid, site.broker.pid])
    stack.callback(tree.thaw)  # What is stopped hears nobody who asks it to end.

    def connect(door: str) -> Client:
        vehicle = f"vehicle-{uuid.uuid4().hex[:8]}"
        return _by_mqtt(site, vehicle, model) if door == MQTT else _by_address(site, door, vehicle, model)

    return tree, {door: partial(connect, door) for door in DOORS}


def _by_mqtt(site: DoorSite, vehicle: str, model: str) -> Client:
    session = uuid.uuid4().hex[:12]
    bus = Connection(site.broker.url).open(f"bench-{session}", None, name=vehicle)
    transport = MqttTransport(bus, vehicle=vehicle, session=session, model=model)
    transport.wait_until_served(PATIENCE_S)
    return SkylaneClient(transport, vehicle)


def _by_address(site: DoorSite, door: str, vehicle: str, model: str) -> Client:
    raise PeerError(f"{door}: not yet")

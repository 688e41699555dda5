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
from edge.config import EdgeConfig
from edge.hooks import Hooks
from edge.transports.transport import TRANSPORTS, Transport
from shared import results
from shared.messages import Status, Want
from shared.registry import load
from shared.stages import Stage
from shared.topics import FrameId

_CAMERA = "front"
_ENGINE = "tensorflow"  # That the peers' function is made of.


class SkylaneClient:
    """A vehicle with one camera and one frame in flight, by any of the vehicle's transports."""

    def __init__(self, transport: Transport, vehicle: str, session: str, want: Want) -> None:
        self._transport, self._want = transport, want
        self._vehicle, self._session = vehicle, session
        self._numbers = count()
        self._unreachable = ""

    def ask(self, job: Job) -> Answer:
        """As `Client.ask`."""
        frame_id = FrameId(self._vehicle, _CAMERA, self._session, next(self._numbers))
        message = replace(job.frame, id=frame_id, want=self._want, stamps=())
        self._transport.send(message, self._transport.pack(message), self._lost)
        try:
            reply = self._transport.replies.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise PeerError(f"no answer within {PATIENCE_S:g} s") from None
        if reply is None:
            raise PeerError(f"the frame reached nobody: {self._unreachable or 'the transport was closed'}")
        answer = reply.read()
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


def opened(
    stack: ExitStack, models: Path, model: str, mask_codec: str, doors: tuple[str, ...] = DOORS
) -> tuple[ProcessTree, dict[str, Callable[[], Client]]]:
    """A worker with its broker, up until the stack is closed; and by door how to connect.

    `mask_codec`: how the masks are packed for their way, a key of MASK_CODECS.

    Raises:
        SkylaneError: it did not get ready.
    """
    site = stack.enter_context(DoorSite(models=models, model=model, doors=doors, engine=_ENGINE))
    tree = ProcessTree([site.worker.pid, site.broker.pid])
    stack.callback(tree.thaw)  # Before the site is closed: who is stopped does not hear that it is to end.
    return tree, {door: partial(_connected, site, door, model, Want(mask_codec=mask_codec)) for door in doors}


def _connected(site: DoorSite, door: str, model: str, want: Want) -> Client:
    """A vehicle of its own at a door, which has found the worker.

    Raises:
        SkylaneError: it cannot connect, or nobody serves the model.
    """
    vehicle, session = f"vehicle-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:12]
    where = {"broker": site.broker.url} if door == MQTT else {"worker_addresses": (site.address(door),)}
    config = EdgeConfig.model_validate({"vehicle": vehicle, "model": model, "transport": door, **where})
    transport = load("transport", TRANSPORTS, door)(config, session, Hooks(), lambda _: None)
    client = SkylaneClient(transport, vehicle, session, want)
    if not transport.wait_until_served(PATIENCE_S):
        client.close()
        raise PeerError(f"{door}: nobody serves {model}")
    return client

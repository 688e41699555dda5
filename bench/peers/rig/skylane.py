"""Skylane among the peers: one worker with all its doors, a bare call of its gRPC, and the vehicle's own transports."""

import queue
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from bench.load.gateway_deployment import ALL_TRANSPORTS, MQTT, GatewayDeployment
from bench.peers.clients.client import PATIENCE_S, Answer, Client, PeerError
from bench.peers.clients.plain_grpc import BareCall
from bench.peers.rig.process_tree import ProcessTree
from bench.peers.rig.workload import Job
from edge.config import EdgeConfig
from edge.transport_events import TransportEvents
from edge.transports.channel import Returned
from edge.transports.protocols.skylane import SkylaneAdapter
from edge.transports.transport import TRANSPORTS, Transport
from shared import clock
from shared.messages import results
from shared.messages.frame import RequestOptions, ResultMessage, Status
from shared.messages.results import Classification
from shared.messages.topics import FrameId
from shared.registry import load
from shared.stages import Stage

_CAMERA = "front"
_ENGINE = "tensorflow"  # That the peers' function is made of.
_CALL = "grpc"  # A bare call by grpcio, as any client would make it,
_VEHICLE = "grpc by a vehicle"  # and the same endpoint by a vehicle's transport.


class CallClient:
    """As plain a client as the peers'."""

    def __init__(self, call: BareCall, vehicle: str, session: str, want: RequestOptions) -> None:
        self._call = call
        self._dialect = SkylaneAdapter()
        self._vehicle, self._session, self._want = vehicle, session, want
        self._numbers = count()

    def ask(self, job: Job) -> Answer:
        """As `Client.ask`."""
        frame_id = FrameId(self._vehicle, _CAMERA, self._session, next(self._numbers))
        message = replace(job.frame, id=frame_id, want=self._want, stamps=())
        body = self._call(self._dialect.pack(message).body)
        return answer_of(self._dialect.read(Returned(body, {}, clock.now_ns())), job)

    def close(self) -> None:
        """As `Client.close`."""
        self._call.close()


class SkylaneClient:
    """A vehicle with one camera and one frame in flight, by any of the vehicle's transports."""

    def __init__(self, transport: Transport, vehicle: str, session: str, want: RequestOptions) -> None:
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
        return answer_of(reply.read(), job)

    def close(self) -> None:
        """As `Client.close`."""
        self._transport.close()

    def _lost(self, reason: str) -> None:
        self._unreachable = reason
        self._transport.replies.put(None)


def opened(
    stack: ExitStack,
    models: Path,
    model: str,
    mask_codec: str,
    ways: Sequence[str] | None = None,
    *,
    is_cold: bool = False,
) -> tuple[ProcessTree, dict[str, Callable[[], Client]]]:
    """A worker with its broker, up until the stack is closed; and by way how to connect.

    `mask_codec`: how the masks are packed for their way, a key of MASK_CODECS. `ways`: those that are wanted; None: all.
    `is_cold`: it does not warm its model up.

    Raises:
        SkylaneError: it did not get ready.
    """
    doors = [door for door in ALL_TRANSPORTS if ways is None or any(_door(way) == door for way in ways)]
    flags = ("--warm-up", "0") if is_cold else ()
    site = stack.enter_context(GatewayDeployment(models=models, model=model, doors=doors, engine=_ENGINE, flags=flags))
    tree = ProcessTree([site.worker.pid, site.broker.pid])
    stack.callback(tree.thaw)  # Before the site is closed: who is stopped does not hear that it is to end.
    want = RequestOptions(mask_codec=mask_codec)
    connects: dict[str, Callable[[], Client]] = {}
    if _CALL in doors:
        connects[_CALL] = partial(_called, site, want)
    for door in doors:
        connects[_VEHICLE if door == _CALL else door] = partial(_connected, site, door, model, want)
    return tree, connects


def _door(way: str) -> str:
    return way.partition(" ")[0]


def _called(site: GatewayDeployment, want: RequestOptions) -> Client:
    """A client of a name of its own at the gRPC door."""
    return CallClient(BareCall(site.address(_CALL), SkylaneAdapter.method), *_names(), want)


def _connected(site: GatewayDeployment, door: str, model: str, want: RequestOptions) -> Client:
    """A vehicle of its own at a door, which has found the worker.

    Raises:
        SkylaneError: it cannot connect, or nobody serves the model.
    """
    vehicle, session = _names()
    where = {"broker": site.broker.url} if door == MQTT else {"worker_addresses": (site.address(door),)}
    config = EdgeConfig.model_validate({"vehicle": vehicle, "model": model, "transport": door, **where})
    transport = load("transport", TRANSPORTS, door)(config, session, TransportEvents())
    client = SkylaneClient(transport, vehicle, session, want)
    if not transport.wait_until_served(PATIENCE_S):
        client.close()
        raise PeerError(f"{door}: nobody serves {model}")
    return client


def _names() -> tuple[str, str]:
    """A vehicle's and a session's, that nobody had before."""
    return f"vehicle-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:12]


def answer_of(answer: ResultMessage, job: Job) -> Answer:
    """The mask in memory, and how long its inference took.

    Of a classification a vehicle is told the best classes alone: the others' scores are taken to be right.

    Raises:
        PeerError: it is none.
    """
    if answer.status is not Status.ANSWERED:
        raise PeerError(f"{answer.status}: {answer.reason}")
    result = results.decode(answer.task, answer.data, answer.codec, answer.shape)
    mask = job.mask.copy() if isinstance(result, Classification) else result
    assert isinstance(mask, np.ndarray)
    if isinstance(result, Classification):
        mask.view(np.float32)[list(result.class_ids), 0] = result.scores
    at_ns = {stamp.stage: stamp.at_ns for stamp in answer.stamps}
    return Answer(mask, at_ns[Stage.INFERRED] - at_ns[Stage.BATCHED])

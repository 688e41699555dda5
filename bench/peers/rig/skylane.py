"""Skylane as a candidate: a worker with all frontends, a plain gRPC client, and the vehicle's transports."""

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
from bench.load.worker_process import engine_flags
from bench.peers.clients.client import PATIENCE_S, Answer, Client, PeerError
from bench.peers.clients.plain_grpc import BareCall
from bench.peers.rig.process_tree import ProcessTree
from bench.peers.rig.workload import Job
from edge.config import EdgeConfig
from edge.transports.channel import RpcReply
from edge.transports.opening import open_transport
from edge.transports.protocols.skylane import SkylaneAdapter
from edge.transports.transport import Transport
from shared import clock
from shared.messages.frame import RequestOptions, ResultMessage, Status
from shared.messages.results import Classification
from shared.messages.topics import FrameId
from shared.stages import Stage
from shared.tasks.task import task_named

_CAMERA = "front"
_ENGINE = "tensorflow"  # The engine that runs the peers' function.
_CALL = "grpc"  # A plain call with grpcio.
_VEHICLE = "grpc by a vehicle"  # The same endpoint with the vehicle's transport.


class CallClient:
    """A plain gRPC client, like those of the peers."""

    def __init__(self, call: BareCall, vehicle: str, session: str, want: RequestOptions) -> None:
        self._call = call
        self._dialect = SkylaneAdapter()
        self._vehicle, self._session, self._want = vehicle, session, want
        self._numbers = count()

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`."""
        frame_id = FrameId(self._vehicle, _CAMERA, self._session, next(self._numbers))
        message = replace(job.frame, id=frame_id, options=self._want, stamps=())
        body = self._call(self._dialect.pack(message).body)
        return answer_of(self._dialect.read(RpcReply(body, {}, clock.now_ns())), job)

    def close(self) -> None:
        """See `Client.close`."""
        self._call.close()


class SkylaneClient:
    """A vehicle with one camera and one frame in flight, with any of its transports."""

    def __init__(self, transport: Transport, vehicle: str, session: str, want: RequestOptions) -> None:
        self._transport, self._want = transport, want
        self._vehicle, self._session = vehicle, session
        self._numbers = count()
        self._unreachable = ""

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`."""
        frame_id = FrameId(self._vehicle, _CAMERA, self._session, next(self._numbers))
        message = replace(job.frame, id=frame_id, options=self._want, stamps=())
        self._transport.send(message, self._transport.pack(message), self._lost)
        try:
            reply = self._transport.replies.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise PeerError(f"no answer within {PATIENCE_S:g} s") from None
        if reply is None:
            raise PeerError(f"no worker received the frame: {self._unreachable or 'the transport was closed'}")
        return answer_of(reply.read(), job)

    def close(self) -> None:
        """See `Client.close`."""
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
    """Starts a worker with its broker until the stack is closed; returns its processes and clients by transport.

    Args:
        stack: Ends the worker.
        models: The model repository.
        model: The model to serve.
        mask_codec: Encoding of masks, a key of MASK_CODECS.
        ways: Names of transports; None: all.
        is_cold: Whether the warm-up is skipped.

    Raises:
        SkylaneError: the worker did not become ready.
    """
    transports = [name for name in ALL_TRANSPORTS if ways is None or any(_transport_of(way) == name for way in ways)]
    flags = engine_flags(engine=_ENGINE, warm_up=0 if is_cold else None)
    site = stack.enter_context(GatewayDeployment(models=models, model=model, transports=transports, flags=flags))
    tree = ProcessTree([site.worker.pid, site.broker.pid])
    stack.callback(tree.thaw)  # Frozen processes do not react to the signal to end.
    want = RequestOptions(mask_codec=mask_codec)
    connects: dict[str, Callable[[], Client]] = {}
    if _CALL in transports:
        connects[_CALL] = partial(_called, site, want)
    for name in transports:
        connects[_VEHICLE if name == _CALL else name] = partial(_connected, site, name, model, want)
    return tree, connects


def _transport_of(way: str) -> str:
    return way.partition(" ")[0]


def _called(site: GatewayDeployment, want: RequestOptions) -> Client:
    """Returns a gRPC client with a unique name."""
    return CallClient(BareCall(site.address(_CALL), SkylaneAdapter.method), *_names(), want)


def _connected(site: GatewayDeployment, name: str, model: str, want: RequestOptions) -> Client:
    """Returns a vehicle that is connected to the worker.

    Raises:
        SkylaneError: it cannot connect, or no worker serves the model.
    """
    vehicle, session = _names()
    where = {"broker": site.broker.url} if name == MQTT else {"worker_addresses": (site.address(name),)}
    config = EdgeConfig.model_validate({"vehicle": vehicle, "model": model, "transport": name, **where})
    transport = open_transport(config, session)
    client = SkylaneClient(transport, vehicle, session, want)
    if not transport.workers.wait_until_served(PATIENCE_S):
        client.close()
        raise PeerError(f"{name}: no worker serves {model}")
    return client


def _names() -> tuple[str, str]:
    """Returns unique names of a vehicle and a session."""
    return f"vehicle-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:12]


def answer_of(answer: ResultMessage, job: Job) -> Answer:
    """Returns the mask and its inference time.

    A vehicle gets only the best classes of a classification: the other scores are assumed to be right.

    Raises:
        PeerError: the message has no result.
    """
    if answer.status is not Status.ANSWERED:
        raise PeerError(f"{answer.status}: {answer.reason}")
    result = task_named(answer.task).decode(answer.data, answer.codec, answer.shape)
    mask = job.mask.copy() if isinstance(result, Classification) else result
    assert isinstance(mask, np.ndarray)
    if isinstance(result, Classification):
        mask.view(np.float32)[list(result.class_ids), 0] = result.scores
    at_ns = {stamp.stage: stamp.at_ns for stamp in answer.stamps}
    return Answer(mask, at_ns[Stage.INFERRED] - at_ns[Stage.BATCHED])

"""Skylane as a candidate: a worker with all frontends, a plain gRPC client, and the vehicle's transports."""

import queue
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count

import numpy as np
from msgspec.structs import replace

from bench.peers.clients import PATIENCE_S, Answer, BareCall, Client, PeerError
from bench.peers.plan import PeerPlan
from bench.peers.rig.process_tree import ProcessTree
from bench.peers.rig.workload import Job
from edge.transports.channel import RpcReply
from edge.transports.grpc_channel import SkylaneAdapter
from edge.transports.transport import TRANSPORTS
from ops.processes.gateway_deployment import GatewayDeployment
from ops.processes.worker_process import engine_flags
from shared import clock
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status
from shared.messages.results import Classification
from shared.messages.topics import FrameId
from shared.stages import Stage
from shared.task import task_named

_ENGINE = "tensorflow"  # The engine that runs the peers' function.
_CALL = "grpc"  # A plain call with grpcio.
_VEHICLE = "grpc by a vehicle"  # The same endpoint with the vehicle's transport.


class _Frames:
    """The frames of one camera of a vehicle with a unique name."""

    def __init__(self, mask_codec: str) -> None:
        self.vehicle, self.session = f"vehicle-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:12]
        self._options = RequestOptions(mask_codec=mask_codec)
        self._numbers = count()

    def next(self, job: Job) -> FrameMessage:
        """Returns the message for an image."""
        frame_id = FrameId(self.vehicle, "front", self.session, next(self._numbers))
        return replace(job.frame, id=frame_id, options=self._options, stamps=())


class CallClient:
    """A plain gRPC client, like those of the peers."""

    def __init__(self, address: str, mask_codec: str) -> None:
        self._call = BareCall(address, SkylaneAdapter.method)
        self._adapter = SkylaneAdapter()
        self._frames = _Frames(mask_codec)

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`."""
        body = self._call(self._adapter.pack(self._frames.next(job)).body)
        return answer_of(self._adapter.read(RpcReply(body, {}, clock.now_ns())), job)

    def close(self) -> None:
        """See `Client.close`."""
        self._call.close()


class SkylaneClient:
    """A vehicle with one camera and one frame in flight, with any of its transports."""

    def __init__(self, deployment: GatewayDeployment, transport: str, model: str, mask_codec: str) -> None:
        """Connects to the worker.

        Raises:
            SkylaneError: it cannot connect, or no worker serves the model.
        """
        self._frames = _Frames(mask_codec)
        self._transport = deployment.transport(transport, self._frames.vehicle, self._frames.session, model)
        self._unreachable = ""
        if not self._transport.workers.wait_until_served(PATIENCE_S):
            self.close()
            raise PeerError(f"{transport}: no worker serves {model}")

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`."""
        message = self._frames.next(job)
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


def open_worker(
    stack: ExitStack, plan: PeerPlan, ways: Sequence[str] | None = None, *, is_cold: bool = False
) -> tuple[ProcessTree, dict[str, Callable[[], Client]]]:
    """Starts a worker with its broker until the stack is closed; returns its processes and clients by transport.

    `ways`: names of transports; None: all. `is_cold`: whether the warm-up is skipped.

    Raises:
        SkylaneError: the worker did not become ready.
    """
    transports = [name for name in tuple(TRANSPORTS) if ways is None or any(way.split()[0] == name for way in ways)]
    flags = engine_flags(engine=_ENGINE, warm_up=0 if is_cold else None)
    deployment = GatewayDeployment(models=plan.models, model=plan.model, transports=transports, flags=flags)
    stack.enter_context(deployment)
    tree = ProcessTree([deployment.worker.pid, deployment.broker.pid])
    stack.callback(tree.thaw)  # Frozen processes do not react to the signal to end.
    connects: dict[str, Callable[[], Client]] = {}
    for name in transports:
        if name == _CALL:
            connects[_CALL] = partial(CallClient, deployment.address(_CALL), plan.mask_codec)
        vehicle = partial(SkylaneClient, deployment, name, plan.model, plan.mask_codec)
        connects[_VEHICLE if name == _CALL else name] = vehicle
    return tree, connects


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

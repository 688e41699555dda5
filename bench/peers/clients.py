"""The clients of all servers, with one contract: HTTP, bare gRPC, the Open Inference Protocol, and a vehicle's transports."""

import http.client
import queue
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import count
from math import prod
from typing import Any, Protocol

import grpc
import numpy as np
import requests
from msgspec.structs import replace

from bench.peers.function import (
    FLOOR_METHOD,
    GRPC_OPTIONS,
    INFERENCE_HEADER,
    INPUT,
    MASK_OUTPUT,
    MODEL,
    TOOK_BYTES,
    TOOK_OUTPUT,
)
from edge.config import EdgeConfig
from edge.transports.channel import RpcReply
from edge.transports.grpc_channel import SkylaneAdapter
from edge.transports.opening import open_transport
from ops.processes.deployment import Deployment
from shared import clock
from shared.errors import SkylaneError
from shared.imaging.frames import Pixels
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status
from shared.messages.results import Classification
from shared.messages.topics import FrameId
from shared.stages import Stage
from shared.task import task_named

PATIENCE_S = 60.0  # Timeout of one answer.


class PeerError(SkylaneError):
    """A server did not start, or did not answer as expected."""


@dataclass(frozen=True, slots=True)
class Job:
    """A frame as a client sends it, and the result of a direct call for the same pixels."""

    frame: FrameMessage
    mask: Pixels  # uint8 H×W, or C×4.

    @property
    def data(self) -> bytes:
        """The bytes of the image: JPEG or raw pixels."""
        return bytes(self.frame.data)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a server for one image."""

    mask: Pixels  # uint8 H×W
    inference_ns: int  # Duration of the inference function, measured by the server.


class Client(Protocol):
    """One connection to a server; one call at a time."""

    def ask(self, job: Job) -> Answer:
        """Sends an image and reads the mask.

        Raises:
            PeerError: the server did not answer.
        """

    def close(self) -> None:
        """Closes the connection."""


def check_ready(port: int, path: str) -> None:
    """Checks a server's readiness route: status 200.

    Raises:
        PeerError: the server is not ready.
    """
    try:
        answer = requests.get(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S)
    except requests.RequestException as error:
        raise PeerError(f"no answer over HTTP: {error}") from error
    if answer.status_code != http.HTTPStatus.OK:
        raise PeerError(f"{path} answers HTTP {answer.status_code}: {answer.text[:200]}")


def ask_once(connect: Callable[[], Client], job: Job) -> None:
    """Makes one call over a new connection.

    Raises:
        PeerError: the server did not answer.
    """
    with closing(connect()) as client:
        client.ask(job)


class HttpClient:
    """Posts the image over a persistent connection; the response has the mask, and the inference time in a header."""

    def __init__(self, port: int, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self._path = path

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`."""
        try:
            self._connection.request("POST", self._path, job.data, {"Content-Type": "application/octet-stream"})
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise PeerError(f"no answer over HTTP: {error or type(error).__name__}") from error
        if answer.status != http.HTTPStatus.OK:
            raise PeerError(f"HTTP {answer.status}: {body[:200].decode(errors='replace')}")
        took_ns = int(answer.headers[INFERENCE_HEADER])
        return Answer(np.frombuffer(body, np.uint8).reshape(job.mask.shape), took_ns)

    def close(self) -> None:
        """See `Client.close`."""
        self._connection.close()


class _GrpcClient:
    """Blocking calls of bytes over a separate connection."""

    def __init__(self, address: str, method: str) -> None:
        self._channel: Any = grpc.insecure_channel(address, options=GRPC_OPTIONS)
        self._method: Any = self._channel.unary_unary(method)

    def _call(self, data: bytes) -> bytes:
        try:
            answer: bytes = self._method(data, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            raise PeerError(f"no answer over gRPC: {error.details()}") from error
        return answer

    def close(self) -> None:
        """See `Client.close`."""
        self._channel.close()


class FloorClient(_GrpcClient):
    """A client of `bench.peers.servers.grpcio_server`."""

    def __init__(self, port: int) -> None:
        super().__init__(f"127.0.0.1:{port}", FLOOR_METHOD)

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`."""
        body = self._call(job.data)
        mask = np.frombuffer(body, np.uint8, offset=TOOK_BYTES).reshape(job.mask.shape)
        return Answer(mask, int.from_bytes(body[:TOOK_BYTES], "little"))


class _OpenInferenceClient:
    """Calls by `protocol`: "grpc", or "http" with the binary tensor extension."""

    def __init__(self, protocol: str, port: int) -> None:
        self._library: Any = import_module(f"tritonclient.{protocol}")
        timeouts = {} if protocol == "grpc" else {"network_timeout": PATIENCE_S, "connection_timeout": PATIENCE_S}
        self._client = self._library.InferenceServerClient(f"127.0.0.1:{port}", **timeouts)

    def close(self) -> None:
        """See `Client.close`."""
        self._client.close()

    def _input(self, shape: Sequence[int], kind: str = "UINT8") -> Any:
        return self._library.InferInput(INPUT, shape, kind)

    def _infer(self, given: Any, mask: Any) -> Any:
        took = self._library.InferRequestedOutput(TOOK_OUTPUT)
        return self._called(lambda: self._client.infer(MODEL, [given], outputs=[mask, took]))

    @staticmethod
    def _called(call: Callable[[], Any]) -> Any:
        failures = (import_module("tritonclient.utils").InferenceServerException, OSError)
        try:
            return call()
        except failures as error:
            raise PeerError(f"the Open Inference Protocol's call failed: {error}") from error


class TensorClient(_OpenInferenceClient):
    """Sends the image as a byte tensor in the message and receives the mask in the same way.

    With `as_element`, the image is one element of type BYTES, for servers that convert others to Python numbers.
    """

    def __init__(self, protocol: str, port: int, *, as_element: bool = False) -> None:
        super().__init__(protocol, port)
        self._as_element = as_element

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`."""
        if self._as_element:
            values = np.array([job.data], np.object_)
            given = self._input([1], "BYTES")
        else:
            values = np.frombuffer(job.data, np.uint8)
            given = self._input(values.shape)
        given.set_data_from_numpy(values)
        found = self._infer(given, self._library.InferRequestedOutput(MASK_OUTPUT))
        mask = found.as_numpy(MASK_OUTPUT)
        if self._as_element:
            mask = np.frombuffer(mask[0], np.uint8).reshape(job.mask.shape)
        return Answer(mask, int(found.as_numpy(TOOK_OUTPUT)[0]))


class SharedMemoryClient(_OpenInferenceClient):
    """Triton's system shared memory: both processes map the image and the mask; gRPC carries the rest."""

    def __init__(self, port: int) -> None:
        super().__init__("grpc", port)
        self._memory: Any = import_module("tritonclient.utils.shared_memory")
        self._regions: dict[str, tuple[str, Any]] = {}  # Name at the server and memory, by tensor.

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`. The mask is a view of the memory, which the next call overwrites."""
        pixels = np.frombuffer(job.data, np.uint8)
        given_name, given_memory = self._region(INPUT, prod(job.frame.shape))  # A JPEG is smaller.
        mask_name, mask_memory = self._region(MASK_OUTPUT, job.mask.size)
        self._memory.set_shared_memory_region(given_memory, [pixels])
        given = self._input(pixels.shape)
        given.set_shared_memory(given_name, pixels.size)
        wanted = self._library.InferRequestedOutput(MASK_OUTPUT)
        wanted.set_shared_memory(mask_name, job.mask.size)
        found = self._infer(given, wanted)
        mask: Pixels = self._memory.get_contents_as_numpy(mask_memory, np.uint8, job.mask.shape)
        return Answer(mask, int(found.as_numpy(TOOK_OUTPUT)[0]))

    def close(self) -> None:
        """See `Client.close`; also frees the memory."""
        for name, memory in self._regions.values():
            with suppress(PeerError):  # The server has ended.
                self._called(partial(self._client.unregister_system_shared_memory, name))
            self._memory.destroy_shared_memory_region(memory)
        super().close()

    def _region(self, tensor: str, size_bytes: int) -> tuple[str, Any]:
        if tensor not in self._regions:
            name = f"skylane-{tensor}-{uuid.uuid4().hex[:12]}"
            memory = self._memory.create_shared_memory_region(name, f"/{name}", size_bytes)
            self._regions[tensor] = name, memory
            self._called(lambda: self._client.register_system_shared_memory(name, f"/{name}", size_bytes))
        return self._regions[tensor]


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


class CallClient(_GrpcClient):
    """A plain gRPC client of Skylane, like those of the peers."""

    def __init__(self, address: str, mask_codec: str) -> None:
        super().__init__(address, SkylaneAdapter.method)
        self._adapter = SkylaneAdapter()
        self._frames = _Frames(mask_codec)

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`."""
        body = self._call(self._adapter.pack(self._frames.next(job)).body)
        return answer_of(self._adapter.read(RpcReply(body, {}, clock.now_ns())), job)


class SkylaneClient:
    """A vehicle with one camera and one frame in flight, with any of its transports."""

    def __init__(self, deployment: Deployment, transport: str, model: str, mask_codec: str) -> None:
        """Connects to the worker.

        Raises:
            SkylaneError: it cannot connect, or no worker serves the model.
        """
        self._frames = _Frames(mask_codec)
        settings = {"vehicle": self._frames.vehicle, "model": model, "window": 1, **deployment.endpoint(transport)}
        self._transport = open_transport(EdgeConfig.model_validate(settings), self._frames.session)
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


def answer_of(answer: ResultMessage, job: Job) -> Answer:
    """Returns the mask of Skylane's message and its inference time.

    A vehicle gets only the best classes of a classification: the other scores are assumed to be right.

    Raises:
        PeerError: the message has no result.
    """
    if answer.status is not Status.ANSWERED:
        raise PeerError(f"{answer.status}: {answer.reason}")
    result = task_named(answer.task).decode(answer.data, answer.codec, answer.shape)
    if isinstance(result, Classification):
        mask = job.mask.copy()
        mask.view(np.float32)[list(result.class_ids), 0] = result.scores
    else:
        assert isinstance(result, np.ndarray)
        mask = result
    at_ns = {stamp.stage: stamp.at_ns for stamp in answer.stamps}
    return Answer(mask, at_ns[Stage.INFERRED] - at_ns[Stage.BATCHED])

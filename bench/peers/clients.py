"""The contract of a client of any server, and the simplest one: bytes over HTTP."""

import http.client
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol
from uuid import uuid4

import grpc
import numpy as np

from bench.peers.rig.function import (
    FLOOR_METHOD,
    GRPC_OPTIONS,
    INFERENCE_HEADER,
    INPUT,
    MASK_OUTPUT,
    MODEL,
    TOOK_BYTES,
    TOOK_OUTPUT,
)
from bench.peers.rig.workload import Job
from shared.errors import SkylaneError
from shared.imaging.frames import Pixels

PATIENCE_S = 60.0  # Timeout of one answer.


class PeerError(SkylaneError):
    """A server did not start, or did not answer as expected."""


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


def check_ready(port: int, path: str, word: str) -> None:
    """Checks a server's readiness route: status 200 and a body with `word`.

    Raises:
        PeerError: the server is not ready.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise PeerError(f"no answer over HTTP: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK or word not in said:
        raise PeerError(f"{path} answers HTTP {answer.status}: {said[:200]}")


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


class BareCall:
    """A blocking call over a separate connection."""

    def __init__(self, address: str, method: str) -> None:
        self._channel: Any = grpc.insecure_channel(address, options=GRPC_OPTIONS)
        self._call: Any = self._channel.unary_unary(method)

    def __call__(self, data: bytes) -> bytes:
        """Returns the bytes of the response.

        Raises:
            PeerError: the call failed.
        """
        try:
            answer: bytes = self._call(data, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            raise PeerError(f"no answer over gRPC: {error.details()}") from error
        return answer

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()


class FloorClient:
    """A client of `bench.peers.servers.grpcio_server`."""

    def __init__(self, port: int) -> None:
        self._call = BareCall(f"127.0.0.1:{port}", FLOOR_METHOD)

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`."""
        body = self._call(bytes(job.data))
        mask = np.frombuffer(body, np.uint8, offset=TOOK_BYTES).reshape(job.mask.shape)
        return Answer(mask, int.from_bytes(body[:TOOK_BYTES], "little"))

    def close(self) -> None:
        """See `Client.close`."""
        self._call.close()


class TensorClient:
    """Sends the image as a byte tensor in the message and receives the mask in the same way.

    With `as_element`, the image is one element of type BYTES, for servers that convert others to Python numbers.
    """

    def __init__(self, protocol: str, port: int, *, as_element: bool = False) -> None:
        """Connects by `protocol`: "grpc", or "http" with the binary tensor extension."""
        self._library = _library(protocol)
        timeouts = {} if protocol == "grpc" else {"network_timeout": PATIENCE_S, "connection_timeout": PATIENCE_S}
        self._client = self._library.InferenceServerClient(f"127.0.0.1:{port}", **timeouts)
        self._as_element = as_element

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`."""
        if self._as_element:
            given = self._library.InferInput(INPUT, [1], "BYTES")
            given.set_data_from_numpy(np.array([job.data], np.object_))
        else:
            pixels = np.frombuffer(job.data, np.uint8)
            given = self._library.InferInput(INPUT, pixels.shape, "UINT8")
            given.set_data_from_numpy(pixels)
        wanted = [self._library.InferRequestedOutput(name) for name in (MASK_OUTPUT, TOOK_OUTPUT)]
        found = _called(lambda: self._client.infer(MODEL, [given], outputs=wanted))
        mask = found.as_numpy(MASK_OUTPUT)
        if self._as_element:
            mask = np.frombuffer(mask[0], np.uint8).reshape(job.mask.shape)
        return Answer(mask, int(found.as_numpy(TOOK_OUTPUT)[0]))

    def close(self) -> None:
        """See `Client.close`."""
        self._client.close()


class SharedMemoryClient:
    """Triton's system shared memory: both processes map the image and the mask; gRPC carries the rest."""

    def __init__(self, port: int) -> None:
        self._library = _library("grpc")
        self._memory = import_module("tritonclient.utils.shared_memory")
        self._client = self._library.InferenceServerClient(f"127.0.0.1:{port}")
        self._regions: dict[str, tuple[str, Any]] = {}  # Name at the server and memory, by tensor.

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`. The mask is a view of the memory, which the next call overwrites."""
        pixels = np.frombuffer(job.data, np.uint8)
        given_name, given_memory = self._region(INPUT, job.raw_bytes)  # A JPEG is smaller.
        mask_name, mask_memory = self._region(MASK_OUTPUT, job.mask.size)
        self._memory.set_shared_memory_region(given_memory, [pixels])
        given = self._library.InferInput(INPUT, pixels.shape, "UINT8")
        given.set_shared_memory(given_name, pixels.size)
        wanted = self._library.InferRequestedOutput(MASK_OUTPUT)
        wanted.set_shared_memory(mask_name, job.mask.size)
        took = self._library.InferRequestedOutput(TOOK_OUTPUT)
        found = _called(lambda: self._client.infer(MODEL, [given], outputs=[wanted, took]))
        mask: Pixels = self._memory.get_contents_as_numpy(mask_memory, np.uint8, job.mask.shape)
        return Answer(mask, int(found.as_numpy(TOOK_OUTPUT)[0]))

    def close(self) -> None:
        """See `Client.close`; also frees the memory."""
        for name, memory in self._regions.values():
            with suppress(PeerError):  # The server has ended.
                _called(partial(self._client.unregister_system_shared_memory, name))
            self._memory.destroy_shared_memory_region(memory)
        self._client.close()

    def _region(self, tensor: str, size_bytes: int) -> tuple[str, Any]:
        if tensor not in self._regions:
            name = f"skylane-{tensor}-{uuid4().hex[:12]}"
            memory = self._memory.create_shared_memory_region(name, f"/{name}", size_bytes)
            self._regions[tensor] = name, memory
            _called(lambda: self._client.register_system_shared_memory(name, f"/{name}", size_bytes))
        return self._regions[tensor]


def _library(protocol: str) -> Any:
    """Imports `tritonclient.grpc` or `tritonclient.http`."""
    return import_module(f"tritonclient.{protocol}")


def _called(call: Callable[[], Any]) -> Any:
    failures = (import_module("tritonclient.utils").InferenceServerException, OSError)
    try:
        return call()
    except failures as error:
        raise PeerError(f"the Open Inference Protocol's call failed: {error}") from error

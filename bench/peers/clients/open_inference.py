"""Clients of the Open Inference Protocol: NVIDIA's tritonclient, for Triton and MLServer."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any
from uuid import uuid4

import numpy as np

from bench.peers.clients.client import PATIENCE_S, Answer, PeerError
from bench.peers.rig.function import INPUT, MASK_OUTPUT, MODEL, TOOK_OUTPUT
from bench.peers.rig.workload import Job
from shared.imaging.frames import Pixels


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

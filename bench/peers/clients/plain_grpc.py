"""Plain gRPC calls with bytes in both directions, and the client of the bare gRPC server."""

from typing import Any

import grpc
import numpy as np

from bench.peers.clients.client import PATIENCE_S, Answer, PeerError
from bench.peers.rig.function import FLOOR_METHOD, GRPC_OPTIONS, TOOK_BYTES
from bench.peers.rig.workload import Job


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

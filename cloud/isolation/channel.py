"""The channel between a worker and an engine's process: small MessagePack maps, and descriptors of shared memory."""

import os
import socket
from collections.abc import Mapping
from typing import Any

import msgpack

from cloud.isolation.shared_memory import SharedMemory
from shared.errors import SkylaneError

_MAX_BYTES = 1 << 17


class ChannelClosedError(SkylaneError):
    """The other process has gone."""


class EngineChannel:
    """One end of a pair of sockets that keep messages apart. Used by one thread at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: Mapping[str, Any], memory: SharedMemory | None = None) -> None:
        """Send a map, and memory that goes with it.

        Raises:
            ChannelClosedError: nobody listens any more.
        """
        try:
            socket.send_fds(self._end, [msgpack.packb(message)], [] if memory is None else [memory.fd])
        except OSError as error:
            raise ChannelClosedError(f"the other process has gone ({error.strerror})") from error

    def receive(self, patience_s: float | None = None) -> tuple[dict[str, Any], SharedMemory | None]:
        """Wait for a map, and for the memory that came with it.

        Raises:
            ChannelClosedError: nobody will send any more.
            TimeoutError: nothing came in time.
        """
        self._end.settimeout(patience_s)
        try:
            data, fds, *_ = socket.recv_fds(self._end, _MAX_BYTES, 1)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosedError(f"the other process has gone ({error.strerror})") from error
        if not data:
            raise ChannelClosedError("the other process has gone")
        for fd in fds:
            os.set_inheritable(fd, False)  # noqa: FBT003 - the standard library's own signature.
        memory = SharedMemory.of_descriptor(fds[0]) if fds else None
        try:
            message: dict[str, Any] = msgpack.unpackb(data)
        except (ValueError, msgpack.UnpackException) as error:
            raise ChannelClosedError("the other process speaks no sense any more") from error
        return message, memory

    def close(self) -> None:
        """The other end hears of it."""
        self._end.close()

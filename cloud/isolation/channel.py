"""The channel between a worker and the process of an engine: MessagePack maps and shared memory descriptors."""

import os
import socket
from collections.abc import Mapping
from typing import Any

import msgpack

from cloud.isolation.shared_memory import SharedMemory
from shared.errors import SkylaneError

_MAX_BYTES = 1 << 17


class ChannelClosedError(SkylaneError):
    """The other process has closed the channel."""


class EngineChannel:
    """One end of a pair of message-oriented sockets. Not thread-safe."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: Mapping[str, Any], memory: SharedMemory | None = None) -> None:
        """Sends a map, optionally with shared memory.

        Raises:
            ChannelClosedError: the other process has closed the channel.
        """
        try:
            socket.send_fds(self._end, [msgpack.packb(message)], [] if memory is None else [memory.fd])
        except OSError as error:
            raise ChannelClosedError(f"the other process has ended ({error.strerror})") from error

    def receive(self, timeout_s: float | None = None) -> tuple[dict[str, Any], SharedMemory | None]:
        """Waits for a map and the shared memory that was sent with it.

        Raises:
            ChannelClosedError: the other process has closed the channel, or sent invalid data.
            TimeoutError: no message arrived in time.
        """
        self._end.settimeout(timeout_s)
        try:
            data, fds, *_ = socket.recv_fds(self._end, _MAX_BYTES, 1)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosedError(f"the other process has ended ({error.strerror})") from error
        if not data:
            raise ChannelClosedError("the other process has ended")
        for fd in fds:
            os.set_inheritable(fd, False)  # noqa: FBT003 - the standard library's own signature.
        memory = SharedMemory.of_descriptor(fds[0]) if fds else None
        try:
            message: dict[str, Any] = msgpack.unpackb(data)
        except (ValueError, msgpack.UnpackException) as error:
            raise ChannelClosedError("the other process sent invalid data") from error
        return message, memory

    def close(self) -> None:
        """Closes the channel, which the other process notices."""
        self._end.close()

"""The channel between a worker and the process of an engine: MessagePack maps and shared memory descriptors."""

import fcntl
import mmap
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError

MAX_SHARED_BYTES = 1 << 31
_MAX_MESSAGE_BYTES = 1 << 17
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # The size cannot change while it is mapped.


class ChannelClosedError(SkylaneError):
    """The other process has closed the channel."""


class SharedMemoryError(SkylaneError):
    """Memory cannot be shared, or is not as the other process describes it."""


class SharedMemory:
    """Anonymous memory that is passed as a file descriptor and freed with its last user."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._pages = mmap.mmap(fd, size)

    @classmethod
    def of_size(cls, size: int) -> "SharedMemory":
        """Allocates memory.

        Raises:
            SharedMemoryError: the size is out of range, or allocation failed.
        """
        if not 0 < size <= MAX_SHARED_BYTES:
            raise SharedMemoryError(f"{size} bytes cannot be shared: the limits are 1 and {MAX_SHARED_BYTES}")
        try:
            fd = os.memfd_create("skylane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(fd, size)
        except OSError as error:
            raise SharedMemoryError(f"{size} bytes cannot be shared ({error.strerror})") from error

    @classmethod
    def of_descriptor(cls, fd: int) -> "SharedMemory":
        """Maps memory that the other process allocated.

        Raises:
            SharedMemoryError: it is too large, or its size can still change.
        """
        size = os.fstat(fd).st_size
        if not 0 < size <= MAX_SHARED_BYTES or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            os.close(fd)
            raise SharedMemoryError(
                f"{size} bytes of shared memory are too many, or can still be resized by the other process"
            )
        return cls(fd, size)

    def array(self, dtype: npt.DTypeLike, shape: Sequence[int], offset: int = 0) -> npt.NDArray[Any]:
        """Returns a C-contiguous view of the memory.

        Raises:
            SharedMemoryError: it would exceed the memory.
        """
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        if offset < 0 or min(shape, default=0) < 0 or offset + count * kind.itemsize > self.size:
            raise SharedMemoryError(f"{kind} of shape {list(shape)} at {offset} exceeds {self.size} bytes")
        return np.frombuffer(self._pages, kind, count, offset).reshape(shape)

    def close(self) -> None:
        """Closes the descriptor; the memory is freed with the last array in it."""
        os.close(self.fd)


def replaced(new: SharedMemory | None, old: SharedMemory | None) -> SharedMemory:
    """Returns the new memory if there is any, and closes the old one."""
    if new is None:
        assert old is not None
        return old
    if old is not None:
        old.close()
    return new


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
            data, fds, *_ = socket.recv_fds(self._end, _MAX_MESSAGE_BYTES, 1)
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

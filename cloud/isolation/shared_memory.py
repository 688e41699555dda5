"""Memory that two processes share."""

import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError

MAX_BYTES = 1 << 31
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # Who maps it must not lose pages under its feet.


class SharedMemoryError(SkylaneError):
    """Memory that cannot be shared, or is not what the other side says."""


class SharedMemory:
    """Pages without a name: they are handed over as a descriptor, and gone with the last process that holds them."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._pages = mmap.mmap(fd, size)

    @classmethod
    def of_size(cls, size: int) -> "SharedMemory":
        """New memory.

        Raises:
            SharedMemoryError: that is too much, or the system has none.
        """
        if not 0 < size <= MAX_BYTES:
            raise SharedMemoryError(f"{size} bytes cannot be shared: from 1 to {MAX_BYTES} can")
        try:
            fd = os.memfd_create("skylane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(fd, size)
        except OSError as error:
            raise SharedMemoryError(f"{size} bytes cannot be shared ({error.strerror})") from error

    @classmethod
    def of_descriptor(cls, fd: int) -> "SharedMemory":
        """Memory that the other process made; its size can change no more.

        Raises:
            SharedMemoryError: it is too large, or could still be cut.
        """
        size = os.fstat(fd).st_size
        if not 0 < size <= MAX_BYTES or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            os.close(fd)
            raise SharedMemoryError(f"{size} bytes of memory that the other process could still cut, or too many")
        return cls(fd, size)

    def array(self, dtype: npt.DTypeLike, shape: Sequence[int], offset: int = 0) -> npt.NDArray[Any]:
        """An array in this memory, C-contiguous; a view, which the next user overwrites.

        Raises:
            SharedMemoryError: it would reach beyond the memory.
        """
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        if offset < 0 or min(shape, default=0) < 0 or offset + count * kind.itemsize > self.size:
            raise SharedMemoryError(f"{kind} of shape {list(shape)} at {offset} reaches beyond {self.size} bytes")
        return np.frombuffer(self._pages, kind, count, offset).reshape(shape)

    def close(self) -> None:
        """Let the descriptor go; the pages go with the last array in them."""
        os.close(self.fd)

"""Memory that is shared by two processes."""

import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError

MAX_BYTES = 1 << 31
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # The size cannot change while it is mapped.


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
        if not 0 < size <= MAX_BYTES:
            raise SharedMemoryError(f"{size} bytes cannot be shared: the limits are 1 and {MAX_BYTES}")
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
        if not 0 < size <= MAX_BYTES or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
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

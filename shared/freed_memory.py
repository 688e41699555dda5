"""Freed memory: kept for the next frame, instead of being given back to the kernel and taken from it again.

A frame's buffers are megabytes, and each page of memory that the kernel gives anew costs a fault. The C library keeps what
is freed only after blocks as large were freed before, and by chance of where they lay; here it is told to from the start,
up to what it would come to by itself.
"""

import ctypes
import os

TUNABLES = "GLIBC_TUNABLES"

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # Of glibc's <malloc.h>.
_LARGEST = 32 << 20  # Bytes of a block that is kept; no more can be asked for.
_KEPT = 2 * _LARGEST  # Bytes at the end of an arena.
_OPERATORS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def keep() -> None:
    """Have this process keep what it frees, where its C library can, and its operator has not said otherwise."""
    tunables = os.environ.get(TUNABLES, "")
    if "_threshold" in tunables or any(name in os.environ for name in _OPERATORS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST)
    mallopt(_TRIM_THRESHOLD, _KEPT)

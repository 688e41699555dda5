"""Freed memory: kept for the next frame, instead of being given back to the kernel and taken from it again.

A frame's buffers are megabytes, and each page of memory that the kernel gives anew costs a fault. The C library keeps no
more than twice the largest block that it gave back before, which a frame and its answer exceed together, and by chance of
where they lay; here it is told to keep them from the start.
"""

import ctypes
import os

from shared.huge_pages import VARIABLE

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # Of glibc's <malloc.h>.
_LARGEST = 32 << 20  # Bytes of a block that is kept; no more can be asked for.
_KEPT = 32 << 20  # Bytes at the end of an arena: a colour frame of 1936×1216 takes 7 MB, three or four times at once.
_OPERATORS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")  # Variables of the environment, and
_OPERATORS_TUNABLES = ("glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold")  # what stands for them.


def keep() -> None:
    """Have this process keep what it frees, where its C library can, and its operator has not said otherwise."""
    tunables = os.environ.get(VARIABLE, "")
    if any(name in tunables for name in _OPERATORS_TUNABLES) or any(name in os.environ for name in _OPERATORS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST)
    mallopt(_TRIM_THRESHOLD, _KEPT)

"""Freed memory: kept for the next frame, and given back where a model came or went.

A frame's buffers are megabytes, and each page of memory that the kernel gives anew costs a fault. The C library keeps no
more than twice the largest block that it gave back before, which a frame and its answer exceed together, and by chance of
where they lay; here it is told to keep them from the start.

A model is another matter: to build its graph and tune it takes as much again as it holds, once, and the C library keeps all
of that below whatever still lives. A worker of EfficientNet-B7 held 4.3 GB after its warm-up where 2.5 do, and 4.3 where it
had been unloaded.
"""

import ctypes
import os
from collections.abc import Callable

from shared.runtime.huge_pages import VARIABLE

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # Of glibc's <malloc.h>.
_LARGEST = 32 << 20  # Bytes of a block that is kept; no more can be asked for.
_KEPT = 32 << 20  # Bytes at the end of an arena: a colour frame of 1936×1216 takes 7 MB, three or four times at once.
_OPERATORS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")  # Variables of the environment, and
_OPERATORS_TUNABLES = ("glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold")  # what stands for them.


def retain() -> None:
    """Have this process keep what it frees, where its C library can, and its operator has not said otherwise."""
    tunables = os.environ.get(VARIABLE, "")
    if any(name in tunables for name in _OPERATORS_TUNABLES) or any(name in os.environ for name in _OPERATORS):
        return
    mallopt = _of_the_c_library("mallopt")
    if mallopt is None:
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST)
    mallopt(_TRIM_THRESHOLD, _KEPT)


def trim() -> None:
    """Give the kernel all pages that hold nothing, where the C library can.

    It takes 1 to 9 ms, in which other threads that want memory wait: it is for when a model came, was tuned or went, not for each frame.
    """
    malloc_trim = _of_the_c_library("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _of_the_c_library(name: str) -> Callable[..., int] | None:
    """A function that glibc has and others may not."""
    return getattr(ctypes.CDLL(None), name, None)

"""Tunes glibc's allocator: retains freed memory for the next frame, and trims it after a model was loaded or unloaded.

A frame's buffers take megabytes, and every page that the kernel maps again costs a page fault. By default glibc's
threshold for returning memory adapts to the largest freed block, which a frame and its reply together exceed.

Building and tuning a model temporarily doubles its memory. Without trimming, a worker with EfficientNet-B7 held 4.3 GB
after the warm-up instead of 2.5 GB, and kept them after the model was unloaded.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # From glibc's <malloc.h>.
_LARGEST_BLOCK_BYTES = 32 << 20  # Largest block to retain; the maximum that glibc allows.
_RETAINED_BYTES = 32 << 20  # Free memory to retain per arena: a 1936×1216 colour frame needs three or four times 7 MB.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")  # Environment variables with the same effect,
_TUNABLES = ("glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold")  # and tunables.


def retain() -> None:
    """Makes glibc retain freed memory, unless the environment sets a threshold. Has no effect on other C libraries."""
    tunables = os.environ.get(VARIABLE, "")
    if any(name in tunables for name in _TUNABLES) or any(name in os.environ for name in _VARIABLES):
        return
    mallopt = _glibc_function("mallopt")
    if mallopt is None:
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK_BYTES)
    mallopt(_TRIM_THRESHOLD, _RETAINED_BYTES)


def trim() -> None:
    """Returns all unused pages to the kernel, if the C library supports it.

    It takes 1 to 9 ms, during which other threads cannot allocate. Call it after a model was loaded, tuned or unloaded,
    not for each frame.
    """
    malloc_trim = _glibc_function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _glibc_function(name: str) -> Callable[..., int] | None:
    """Returns a function of glibc; None if the C library lacks it."""
    return getattr(ctypes.CDLL(None), name, None)


VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"  # glibc 2.35 or later. Users disable huge pages with 0.

KERNEL_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def reexec_with_huge_pages(kernel_setting: Path = KERNEL_SETTING) -> None:
    """Executes this program again, in the same process, with huge pages enabled.

    Returns if that was done already or would have no effect. Call it before anything is loaded or opened.
    """
    try:
        kernel_mode = kernel_setting.read_text(encoding="ascii")
    except (OSError, ValueError):
        return
    environment = new_environment(os.environ, kernel_mode)
    if environment is None:
        return
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - itself.
    except OSError:
        return  # It runs without huge pages, only slower.


def new_environment(environment: Mapping[str, str], kernel_mode: str) -> dict[str, str] | None:
    """Returns the environment to start with; None if it need not change.

    `kernel_mode` is the content of the kernel's setting, such as "always [madvise] never".
    """
    tunables = environment.get(VARIABLE, "")
    if "[madvise]" not in kernel_mode or TUNABLE in tunables:
        return None
    return {**environment, VARIABLE: ":".join(filter(None, (tunables, f"{TUNABLE}=1")))}

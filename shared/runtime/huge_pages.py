"""Huge pages for what a process allocates: a model's maps are megabytes each, and small pages miss the processor's table.

The C library asks for them only where its tunable says so as the process starts, hence the process starts anew. On the
machine of `skylane bench tensorflow` a frame of road-small then took 0.55 to 0.75 of the time, on every engine.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"  # glibc 2.35 and later; others ignore it. 0 in the environment keeps it off.

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def reexec_with_huge_pages() -> None:
    """Start this process anew with huge pages, as the same process, where the kernel gives them to who asks.

    Comes back where there is nothing to gain, or it was done. Call it before anything is loaded or opened.
    """
    environment = wanted(os.environ, _setting())
    if environment is None:
        return
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - itself.
    except OSError:
        return  # It runs without, only slower.


def wanted(environment: Mapping[str, str], setting: str) -> dict[str, str] | None:
    """The environment to start with, None where it need not change; `setting`: the kernel's "always [madvise] never"."""
    tunables = environment.get(VARIABLE, "")
    if "[madvise]" not in setting or TUNABLE in tunables:
        return None
    return {**environment, VARIABLE: ":".join(filter(None, (tunables, f"{TUNABLE}=1")))}


def _setting() -> str:
    try:
        return _SETTING.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""

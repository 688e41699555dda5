"""Transparent huge pages for the heap: feature maps take megabytes each, and small pages cause TLB misses.

glibc reads the tunable only when a process starts, so the process executes itself again. On the machine of
`skylane bench tensorflow` a frame of road-small then took 0.55 to 0.75 of the time, with every engine.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

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

import ctypes
import os
import subprocess
import sys

import pytest

from shared.runtime.memory import VARIABLE

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")

# Allocates, writes and frees blocks of the size of a raw frame; prints the page faults per round.
_CHILD = """
import resource, sys
from shared.runtime import memory
if "retain" in sys.argv:
    memory.retain()
FRAME, ROUNDS = 3 << 20, 50
for round_number in range(ROUNDS + 1):
    if round_number == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    frames = [bytes([round_number]) * FRAME for _ in range(2)]
    del frames
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // ROUNDS)
"""
_PAGES = 2 * (3 << 20) // os.sysconf("SC_PAGE_SIZE")
_OPERATOR_VARIABLES = {VARIABLE, "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}


def _faults(*flags: str, **environment: str) -> int:
    inherited = {name: value for name, value in os.environ.items() if name not in _OPERATOR_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *flags],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_freed_memory_is_reused_for_the_next_frame() -> None:
    """The kernel clears each new page, which takes longer than copying a raw frame."""
    assert _faults("retain") < _PAGES // 10


@pytest.mark.parametrize(
    ("name", "value"), [(VARIABLE, "glibc.malloc.trim_threshold=4096"), ("MALLOC_TRIM_THRESHOLD_", "4096")]
)
def test_settings_of_the_operator_are_kept(name: str, value: str) -> None:
    """Memory may matter more than speed on a small board."""
    assert _faults("retain", **{name: value}) > _PAGES // 10


# Allocates like a graph builder: most blocks are freed, but a few live ones above them remain.
_BUILDER = """
import os
from pathlib import Path
from shared.runtime import memory
def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
PIECE, PIECES = 64 << 10, 3200
memory.retain()
before = resident_mb()
blocks = [bytes([1]) * PIECE for _ in range(PIECES)]
live = blocks[::100]
full = resident_mb()
del blocks
untrimmed = resident_mb()
memory.trim()
print(before, full, untrimmed, resident_mb())
"""


def test_trim_returns_the_memory_of_building_a_model() -> None:
    """Live blocks keep glibc from returning the free memory below them."""
    inherited = {name: value for name, value in os.environ.items() if name not in _OPERATOR_VARIABLES}
    command = [sys.executable, "-c", _BUILDER]
    output = subprocess.run(command, env=inherited, capture_output=True, text=True, check=True).stdout
    before_mb, full_mb, untrimmed_mb, trimmed_mb = map(int, output.split())
    assert full_mb - before_mb > 190
    assert untrimmed_mb - before_mb > 190
    assert trimmed_mb - before_mb < 20

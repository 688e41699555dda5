import ctypes
import os
import subprocess
import sys

import pytest

from shared.runtime.huge_pages import VARIABLE

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")

# Blocks as a raw frame's: taken, written, and freed; how many pages the kernel had to give.
_CHILD = """
import resource, sys
from shared.runtime import malloc
if "keep" in sys.argv:
    malloc.retain()
FRAME, TURNS = 3 << 20, 50
for turn in range(TURNS + 1):
    if turn == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    frames = [bytes([turn]) * FRAME for _ in range(2)]
    del frames
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // TURNS)
"""
_PAGES = 2 * (3 << 20) // os.sysconf("SC_PAGE_SIZE")
_OF_THE_OPERATOR = {VARIABLE, "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}


def _faults(*flags: str, **environment: str) -> int:
    kept = {name: value for name, value in os.environ.items() if name not in _OF_THE_OPERATOR}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *flags], env={**kept, **environment}, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_the_memory_of_a_frame_is_used_for_the_next_one() -> None:
    """The kernel clears each page that it gives: for a raw frame that takes longer than to copy it."""
    assert _faults("keep") < _PAGES // 10


@pytest.mark.parametrize(
    ("name", "value"), [(VARIABLE, "glibc.malloc.trim_threshold=4096"), ("MALLOC_TRIM_THRESHOLD_", "4096")]
)
def test_what_an_operator_says_of_memory_stays(name: str, value: str) -> None:
    """On a small board it may be worth more than time."""
    assert _faults("keep", **{name: value}) > _PAGES // 10


# A graph's way: much is taken, little of it lives, and lies above what was freed.
_BUILDER = """
import os
from pathlib import Path
from shared.runtime import malloc
def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
PIECE, PIECES = 64 << 10, 3200
malloc.retain()
before = held()
taken = [bytes([1]) * PIECE for _ in range(PIECES)]
lives = taken[::100]
full = held()
del taken
kept = held()
malloc.trim()
print(before, full, kept, held())
"""


def test_what_building_a_model_took_goes_back_to_the_machine() -> None:
    """Pieces that live hold up all that lies below them, and an operator's other programs want it."""
    kept = {name: value for name, value in os.environ.items() if name not in _OF_THE_OPERATOR}
    told = subprocess.run([sys.executable, "-c", _BUILDER], env=kept, capture_output=True, text=True, check=True).stdout
    before_mb, full_mb, kept_mb, left_mb = map(int, told.split())
    assert full_mb - before_mb > 190
    assert kept_mb - before_mb > 190
    assert left_mb - before_mb < 20

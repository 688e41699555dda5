import ctypes
import os
import subprocess
import sys

import pytest

from shared.huge_pages import VARIABLE

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim"
)

# How many megabytes can still be given back, once a model is warm and once it is closed.
_CHILD = """
import os
from pathlib import Path
from cloud.repository import Repository, default_root
from shared import freed_memory
def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
def left():
    before = held()
    freed_memory.give_back()
    return before - held()
freed_memory.keep()
model = Repository(default_root()).load("road-small")
model.warm_up()
warm = left()
model.close()
print(warm, left())
"""


def test_a_model_that_is_warm_or_closed_has_given_back_what_it_took_for_that() -> None:
    """Else a worker holds twice what its model needs, and all of it once that is unloaded."""
    small_pages = {**os.environ, VARIABLE: "glibc.malloc.hugetlb=0"}
    done = subprocess.run([sys.executable, "-c", _CHILD], env=small_pages, capture_output=True, text=True, check=True)
    warm_mb, closed_mb = map(int, done.stdout.split())
    assert warm_mb < 8
    assert closed_mb < 8

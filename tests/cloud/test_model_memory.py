import ctypes
import os
import subprocess
import sys

import pytest

from shared.runtime.huge_pages import VARIABLE

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim"
)

# How many megabytes can still be given back, once a model was opened, has answered and is closed.
_CHILD = """
import os
from pathlib import Path
import numpy as np
from cloud.models.repository import Repository, default_root
from shared import freed_memory
def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
def left():
    before = held()
    freed_memory.give_back()
    return before - held()
freed_memory.keep()
model = Repository(default_root()).load("road-small")
opened = left()
model.infer(np.zeros((1, *model.input_shape), np.uint8))
tuned = left()
model.close()
print(opened, tuned, left())
"""


def test_what_opening_tuning_and_holding_a_model_took_is_given_back() -> None:
    """Else a worker holds twice what its model needs, and all of it once that is unloaded."""
    small_pages = {**os.environ, VARIABLE: "glibc.malloc.hugetlb=0"}
    done = subprocess.run([sys.executable, "-c", _CHILD], env=small_pages, capture_output=True, text=True, check=True)
    assert all(int(still_mb) < 8 for still_mb in done.stdout.split()), done.stdout

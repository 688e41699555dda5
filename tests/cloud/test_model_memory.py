import ctypes
import os
import subprocess
import sys

import pytest

from shared.runtime.memory import VARIABLE

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim"
)

# Prints the megabytes that can still be returned after opening, inference and closing.
_CHILD = """
import os
from pathlib import Path
import numpy as np
from cloud.models.opening import open_model
from shared.models.repository import Repository, default_root
from shared.runtime import memory
def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
def left():
    before = held()
    memory.trim()
    return before - held()
memory.retain()
model = open_model(Repository(default_root()).find("road-small"))
opened = left()
model.infer(np.zeros((1, *model.input_shape), np.uint8))
tuned = left()
model.close()
print(opened, tuned, left())
"""


def test_memory_is_returned_after_opening_tuning_and_closing() -> None:
    """Otherwise a worker would hold twice the memory of its model, also after unloading it. TensorFlow prints nothing."""
    small_pages = {**os.environ, VARIABLE: "glibc.malloc.hugetlb=0"}
    done = subprocess.run([sys.executable, "-c", _CHILD], env=small_pages, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert all(int(still_mb) < 8 for still_mb in done.stdout.split()), done.stdout

"""Which devices this machine lacks: a cell that needs one is skipped, not failed."""

import subprocess
import sys
from collections.abc import Iterable

_ASK = """
import sys
from cloud.engines.engine import DeviceError
from cloud.engines.tensorflow.library import choose_device
for device in sys.argv[1:]:
    try:
        choose_device(device)
        print()
    except DeviceError as error:
        print(" ".join(str(error).split()))
"""


def missing(devices: Iterable[str]) -> dict[str, str]:
    """The reason for each device that is not here; a CPU is everywhere.

    TensorFlow is asked, as it is what must see them, in a process of its own, as it would stay in this one.
    """
    asked = sorted(set(devices) - {"cpu"})
    if not asked:
        return {}
    done = subprocess.run([sys.executable, "-c", _ASK, *asked], capture_output=True, text=True, check=True)
    return {device: reason for device, reason in zip(asked, done.stdout.splitlines(), strict=True) if reason}

"""Child processes, ended without leaving one behind."""

import subprocess
from typing import Any


def end(process: "subprocess.Popen[Any]", patience_s: float) -> None:
    """End a child: by SIGTERM, and by SIGKILL when it does not end within `patience_s`. Ending twice is no error."""
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

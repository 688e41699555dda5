"""What a benchmark runs in: its scratch folder, free TCP ports, and the synthetic bag that it uses by default."""

import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rosbag_tools.drive.recording import DrivePlan, record

OnStep = Callable[[str], None]  # Receives a description of the next step.

SEED = 2026
_WIDTH, _HEIGHT = 1936, 1216


class BenchRun(ExitStack):
    """A block for which a benchmark runs; `enter_context` adds what ends with it."""

    def __init__(self, on_step: OnStep = lambda _: None) -> None:
        """`on_step` displays the progress."""
        super().__init__()
        self.step = on_step
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="skylane-bench-")))  # Empty.


def free_port() -> int:
    """Returns a TCP port on which nothing listens at the moment."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Returns different free TCP ports; repeated calls of `free_port` may return the same port twice."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def sample_bag(
    frames: int,
    progress: Callable[[], None] | None = None,
    *,
    width: int = _WIDTH,
    height: int = _HEIGHT,
    seed: int = SEED,
    static_camera: bool = False,
) -> Path:
    """Returns a bag with a synthetic drive under `runs/bags`, which is rendered if it does not exist.

    `progress` is called after every rendered frame. `static_camera`: the camera stands at the kerb.
    """
    size = "" if (width, height) == (_WIDTH, _HEIGHT) else f"-{width}x{height}"
    path = Path("runs") / "bags" / f"{'static' if static_camera else 'drive'}-{seed}-{frames}{size}"
    if not path.exists():
        draft = path.with_name(f"{path.name}.part")
        plan = DrivePlan(seed=seed, frames=frames, width=width, height=height, static_camera=static_camera)
        record(draft, plan, overwrite=True, progress=progress)
        draft.rename(path)
    return path

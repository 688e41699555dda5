"""A worker with a trivial engine, and the flags of its vehicle, for tests of bad input."""

from contextlib import AbstractContextManager
from pathlib import Path
from uuid import uuid4

from cloud.node import CloudNode
from shared.mqtt.bus import Bus
from tests.pipeline.rig import serving
from tests.support.tiny_model import model


def working(bus: Bus) -> AbstractContextManager[CloudNode]:
    """Runs a worker of model `tiny` on a bus, alone in its group."""
    return serving(lambda _: bus, model())


def flags_of(url: str, out: Path) -> tuple[str, ...]:
    """Returns the flags of a new vehicle that sends every frame to model `tiny`."""
    vehicle = f"car-{uuid4().hex[:6]}"
    return ("--broker", url, "--model", "tiny", "--vehicle", vehicle, "--out", str(out), "--closed-loop")

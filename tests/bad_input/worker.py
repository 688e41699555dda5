"""A worker with a trivial engine, for tests of bad input."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from cloud.engines.engine import Outputs
from cloud.engines.placement import Precision
from cloud.models.manifest import BatchingSection, InputSection, Manifest, OutputKind, OutputSection
from cloud.models.model import Model
from cloud.node import CloudNode, WorkerSettings
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import Labels
from shared.messages.model_card import ModelCard
from shared.mqtt.bus import Bus, MemoryBus
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address

HEIGHT, WIDTH = 16, 24
WAIT_S = 60.0
CARD = ModelCard(
    name="tiny",
    version="1",
    sha256="0" * 64,
    task="segmentation",
    height=HEIGHT,
    width=WIDTH,
    layout=Layout.RGB8,
    resize=Resize.CROP,
    labels=Labels(("dark", "light"), ((0, 0, 0), (255, 255, 255))),
    trained=True,
)


class ThresholdEngine:
    """An engine without a library; pixels above 127 are class 1."""

    name = "tensorflow"
    device = "cpu"
    precision = Precision.FP32
    batch_size = None

    def infer(self, batch: npt.NDArray[np.uint8]) -> Outputs:
        """See Engine."""
        return {"mask": (batch[..., 0] > 127).astype(np.uint8)}

    def close(self) -> None:
        """See Engine."""


def _model() -> Model:
    manifest = Manifest(
        format="frozen_graph",
        file="none",
        sha256=CARD.sha256,
        input=InputSection(tensor="input:0", height=HEIGHT, width=WIDTH),
        output=OutputSection(tensor="prediction:0", kind=OutputKind.CLASS_IDS),
        labels_file="none",
        batching=BatchingSection(),
    )
    return Model(manifest, CARD, ThresholdEngine())


@contextmanager
def working(bus: Bus) -> Iterator[CloudNode]:
    """Runs a worker of model `tiny` on a bus, alone in its group."""
    if isinstance(bus, MemoryBus):
        bus.supports_shared_subscriptions = True  # Avoids the wait for other workers.
    name = f"worker-{uuid4().hex[:6]}"
    node = CloudNode([_model()], WorkerSettings(worker=name, session="s1", group=f"group-{name}"))
    ready = threading.Event()
    thread = threading.Thread(target=node.serve, args=(bus, lambda: None, ready.set), name=name)
    thread.start()
    try:
        assert ready.wait(WAIT_S)
        yield node
    finally:
        node.stop()
        thread.join(WAIT_S)


def bus_of(url: str) -> MqttBus:
    """Connects to a broker with a new client id."""
    return MqttBus(Address.parse(url), f"test-{uuid4().hex[:12]}")


def flags_of(url: str, out: Path) -> tuple[str, ...]:
    """Returns the flags of a new vehicle that sends every frame to model `tiny`."""
    vehicle = f"car-{uuid4().hex[:6]}"
    return ("--broker", url, "--model", "tiny", "--vehicle", vehicle, "--out", str(out), "--closed-loop")

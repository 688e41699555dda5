"""A worker without a model in a child process, to measure everything except inference.

It runs until SIGTERM, optionally with a clock that is wrong by a known amount. Its first message contains its session and a
reading of its clock. With a model repository, it gives the answers of a stored model in a fixed time.
"""

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from cloud.config import CloudConfig
from cloud.frontends.mqtt import worker_will
from cloud.node import CloudNode
from ops.processes.child import BenchError, Child, reply
from ops.processes.child import settings as child_settings
from ops.processes.fixed_time import open_fixed_time
from shared import clock
from shared.errors import SkylaneError
from shared.inference.engine import Images, Outputs
from shared.inference.model import Model
from shared.models.manifest import Manifest, Precision
from shared.models.repository import StoredModel
from shared.mqtt.broker_options import BrokerOptions
from shared.mqtt.name_guard import client_id
from shared.package_data import shipped

MODEL = "instant"
LABELS = shipped("configs") / "labels" / "street12.yaml"
_READINGS = 100
LEVELS_PER_CLASS = 22  # Levels of red, so that 255 is the twelfth class.
_STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A process's clock at a time of CLOCK_MONOTONIC, which all processes of a machine share."""

    monotonic_ns: int
    now_ns: int
    drift_ppm: float = 0.0

    @classmethod
    def take(cls, drift_ppm: float = 0.0) -> Self:
        """Reads this process's clock, with an error below the time of one reading (less than a microsecond).

        `drift_ppm`: the known drift of an artificially wrong clock.
        """
        best: tuple[int, int, int] | None = None
        for _ in range(_READINGS):
            before_ns, now_ns, after_ns = time.monotonic_ns(), clock.now_ns(), time.monotonic_ns()
            if best is None or after_ns - before_ns < best[0]:
                best = (after_ns - before_ns, (before_ns + after_ns) // 2, now_ns)
        assert best is not None
        return cls(best[1], best[2], drift_ppm)


def expected_labels(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Computes class ids 0 to 11 from an image's red channel, so that masks can be checked: …×H×W×3 RGB to …×H×W."""
    labels: npt.NDArray[np.uint8] = images[..., 0] // LEVELS_PER_CLASS
    return labels


class NullEngine:
    """An engine that returns the class road for every pixel, immediately or after a wait."""

    name = "instant"
    device = "cpu"
    precision = Precision.INT8
    batch_size = 1

    def __init__(self, think_ms: float = 0.0, *, labels_from_pixels: bool = False) -> None:
        """`labels_from_pixels`: return `expected_labels` of every image instead of road."""
        self._think_s = think_ms / 1e3
        self._labels_from_pixels = labels_from_pixels

    def infer(self, batch: Images) -> Outputs:
        """See Engine."""
        if self._think_s:
            time.sleep(self._think_s)  # Simulates an accelerator: no core of this machine is busy.
        return {"mask": expected_labels(batch) if self._labels_from_pixels else np.zeros(batch.shape[:3], np.uint8)}

    def close(self) -> None:
        """See Engine."""


@dataclass(frozen=True, slots=True)
class NullWorkerSettings:
    """Settings of a null worker."""

    worker: str = "instant"
    model: str = MODEL
    height: int = 608
    width: int = 968
    think_ms: float = 0.0
    labels_from_pixels: bool = False
    certs: Path | None = None  # Folder with its certificate, for a broker that requires one.
    http: str | None = None  # HOST:PORT of the HTTP endpoint; None: no endpoint.
    grpc: str | None = None  # HOST:PORT of the gRPC endpoint; None: no endpoint.
    models: Path | None = None  # Repository with the model whose answers it gives; None: class ids without a model.
    answers: tuple[Path, ...] = ()  # Files with the model's answers, see `ops.processes.fixed_time`.


class NullWorkerProcess(Child):
    """A null worker in a child process; ready when the constructor returns, drained when the block ends."""

    def __init__(
        self,
        broker: str,
        settings: NullWorkerSettings,
        *,
        clock_offset_s: float = 0.0,
        clock_drift_ppm: float = 0.0,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        """Starts the worker with a clock of the given error.

        `environment`: variables added to this process's environment. `log`: file for its standard error.

        Raises:
            BenchError: it ended before it was ready.
        """
        clock_error = {"clock_offset_s": clock_offset_s, "clock_drift_ppm": clock_drift_ppm}
        super().__init__(
            __name__,
            {"broker": broker, **clock_error, **asdict(settings)},
            title=f"the null worker {settings.worker}",
            environment=environment,
            log=log,
        )
        ready: dict[str, Any] = self.wait()
        self.name = settings.worker
        self.session: str = ready["session"]
        self.clock = ClockReading(**ready["clock"])

    def drain(self, limit_s: float = _STOP_TIMEOUT_S) -> int:
        """Lets the worker finish its frames and end, and waits for it; returns the exit code.

        Raises:
            BenchError: it still runs after `limit_s`.
        """
        self._process.terminate()
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the null worker {self.name} still runs {limit_s:g} s after SIGTERM") from error

    def __exit__(self, *_: object) -> None:
        self.terminate(_STOP_TIMEOUT_S)


def null_model(settings: NullWorkerSettings) -> Model:
    """Returns the model that a null worker serves.

    Raises:
        SkylaneError: the repository has no such model.
    """
    if settings.models is not None:
        return open_fixed_time(settings.models, settings.model, settings.answers, settings.think_ms)
    manifest = Manifest.model_validate(
        {
            "format": "frozen_graph",
            "file": "none",
            "sha256": "0" * 64,
            "input": {"tensor": "input:0", "height": settings.height, "width": settings.width},
            "output": {"tensor": "prediction:0", "kind": "class_ids"},
            "labels_file": LABELS.name,
            "trained": False,
        }
    )
    card = StoredModel(settings.model, LABELS.parent, LABELS.parent, manifest).card()
    engine = NullEngine(settings.think_ms, labels_from_pixels=settings.labels_from_pixels)
    model = Model(manifest.with_labels(card.labels), card, engine)
    model.warm_up(1)  # The card then has the time of an inference, which the worker reports before its first frame.
    return model


def main(*, broker: str, clock_offset_s: float = 0.0, clock_drift_ppm: float = 0.0, **settings: Any) -> None:
    """Runs a null worker until SIGTERM or Ctrl-C.

    Raises:
        SkylaneError: the broker cannot be reached, or another worker has the name.
    """
    clock.skew_clock(round(clock_offset_s * 1e9), clock_drift_ppm)
    reading = ClockReading.take(clock_drift_ppm)
    paths = {key: Path(settings.pop(key)) for key in ("certs", "models") if settings.get(key)}
    answers = tuple(map(Path, settings.pop("answers", ())))
    worker = NullWorkerSettings(**(settings | paths), answers=answers)
    session, name = uuid.uuid4().hex[:12], worker.worker
    config = CloudConfig(worker=name, http=worker.http, grpc=worker.grpc)
    node = CloudNode([null_model(worker)], config, session=session)
    bus = BrokerOptions(broker, certs=worker.certs).open(
        client_id("worker", name),
        worker_will(name, session),
        name=name,
        on_connected=node.announce,
        on_fault=node.threads.fault,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: node.stop())
    node.serve(bus, lambda: None, lambda: reply({"session": session, "clock": asdict(reading)}))


if __name__ == "__main__":
    try:
        main(**child_settings())
    except SkylaneError as error:
        sys.exit(f"{MODEL}: {error}")

"""A worker without a model, to measure everything except inference; runs in threads of this process or in a child.

As a child process it runs until SIGTERM, optionally with a clock that is wrong by a known amount. Its first message contains
its session and a reading of its clock. With a model repository, it gives the answers of a stored model in a fixed time.
"""

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from cloud.config import CloudConfig
from cloud.frontends.mqtt import worker_will
from cloud.gateway.settings import GatewaySettings
from cloud.node import CloudNode
from ops.processes.child import BenchError, Child, reply
from ops.processes.child import settings as child_settings
from ops.processes.fixed_time import open_fixed_time
from shared import clock
from shared.errors import SkylaneError
from shared.imaging.labels import read_labels
from shared.inference.engine import Images, Outputs
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.models.manifest import Manifest, Precision
from shared.mqtt.broker_options import BrokerOptions
from shared.mqtt.bus import Bus
from shared.mqtt.name_guard import client_id
from shared.package_data import shipped
from shared.runtime.processes import terminate

MODEL = "instant"
LABELS = shipped("configs") / "labels" / "street12.yaml"
_READINGS = 100
LEVELS_PER_CLASS = 22  # Levels of red, so that 255 is the twelfth class.
_STOP_TIMEOUT_S = 30.0
_JOIN_INTERVAL_S = 0.5


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

    def monotonic_at(self, stamp_ns: int) -> int:
        """Converts a stamp of this process to CLOCK_MONOTONIC."""
        return self.monotonic_ns + round((stamp_ns - self.now_ns) / (1 + self.drift_ppm / 1e6))

    def now_at(self, monotonic_ns: int) -> int:
        """Converts a time of CLOCK_MONOTONIC to this process's clock."""
        return self.now_ns + round((monotonic_ns - self.monotonic_ns) * (1 + self.drift_ppm / 1e6))


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


class NullWorker(AbstractContextManager["NullWorker"]):
    """A worker with the null engine in threads of this process, from the constructor to the end of the block."""

    def __init__(self, broker: str, settings: NullWorkerSettings) -> None:
        """Starts the worker.

        Raises:
            SkylaneError: the broker cannot be reached.
        """
        self.session = uuid.uuid4().hex[:12]
        self.is_ready = False  # Whether it accepts frames.
        self._settled = threading.Event()  # Set when it is ready, or has ended.
        self._error: BaseException | None = None
        gateway = GatewaySettings(http=settings.http, grpc=settings.grpc)
        self._node = CloudNode(
            [null_model(settings)], CloudConfig(worker=settings.worker), session=self.session, gateway=gateway
        )
        bus = BrokerOptions(broker, certs=settings.certs).open(
            client_id("worker", settings.worker),
            worker_will(settings.worker, self.session),
            name=settings.worker,
            on_connected=self._node.announce,
            on_fault=self._node.fault,
        )
        self._thread = threading.Thread(target=self._serve, args=(bus,), name="null-worker")
        self._thread.start()

    def wait_until_ready(self) -> bool:
        """Waits until the worker accepts frames; False if it ended instead."""
        self._settled.wait()
        return self.is_ready

    def stop(self) -> None:
        """Tells the worker to drain and end; may be called from a signal handler."""
        self._node.stop()

    def join(self) -> None:
        """Waits until the worker has ended.

        Raises:
            SkylaneError: the reason why it ended by itself; other exceptions of the worker are raised as they are.
        """
        # A wait without a timeout would block signal handlers, which only run between waits.
        while self._thread.is_alive():
            self._thread.join(_JOIN_INTERVAL_S)
        if self._error is not None:
            raise self._error

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()

    def _serve(self, bus: Bus) -> None:
        try:
            self._node.serve(bus, lambda: None, self._ready)
        except BaseException as error:  # noqa: BLE001 (`join` raises it again)
            self._error = error
        finally:
            self._settled.set()

    def _ready(self) -> None:
        self.is_ready = True
        self._settled.set()


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
        self._log = log
        self.session: str = ready["session"]
        self.clock = ClockReading(**ready["clock"])

    @property
    def log_tail(self) -> str:
        """The last line of the log."""
        lines = [] if self._log is None else self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "it logged nothing"

    def drain(self, limit_s: float = _STOP_TIMEOUT_S) -> int:
        """Tells the worker to finish its frames and end, and waits for it; returns the exit code.

        Raises:
            BenchError: it still runs after `limit_s`.
        """
        self._process.terminate()
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the null worker {self.name} still runs {limit_s:g} s after SIGTERM") from error

    def __exit__(self, *_: object) -> None:
        terminate(self._process, _STOP_TIMEOUT_S)
        self.end()


def null_model(settings: NullWorkerSettings) -> Model:
    """Returns the model that a null worker serves.

    Raises:
        SkylaneError: the repository has no such model.
    """
    if settings.models is not None:
        return open_fixed_time(settings.models, settings.model, settings.answers, settings.think_ms)
    labels = read_labels(LABELS)
    manifest = Manifest.model_validate(
        {
            "format": "frozen_graph",
            "file": "none",
            "sha256": "0" * 64,
            "input": {"tensor": "input:0", "height": settings.height, "width": settings.width},
            "output": {"tensor": "prediction:0", "kind": "class_ids"},
            "labels": [
                {"name": name, "colour": colour} for name, colour in zip(labels.names, labels.colours, strict=True)
            ],
        }
    )
    card = ModelCard(
        name=settings.model,
        version="1",
        sha256=manifest.sha256,
        task=manifest.task,
        height=settings.height,
        width=settings.width,
        layout=manifest.input.layout,
        resize=manifest.input.resize,
        labels=labels,
        trained=False,
    )
    model = Model(manifest, card, NullEngine(settings.think_ms, labels_from_pixels=settings.labels_from_pixels))
    model.warm_up(1)  # The card then has the time of an inference, which the worker reports before its first frame.
    return model


def main(*, broker: str, clock_offset_s: float = 0.0, clock_drift_ppm: float = 0.0, **settings: Any) -> None:
    """Runs a null worker until SIGTERM or Ctrl-C."""
    clock.skew_clock(round(clock_offset_s * 1e9), clock_drift_ppm)
    reading = ClockReading.take(clock_drift_ppm)
    paths = {key: Path(settings.pop(key)) for key in ("certs", "models") if settings.get(key)}
    answers = tuple(map(Path, settings.pop("answers", ())))
    worker = NullWorker(broker, NullWorkerSettings(**(settings | paths), answers=answers))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: worker.stop())
    if worker.wait_until_ready():
        reply({"session": worker.session, "clock": asdict(reading)})
    worker.join()


if __name__ == "__main__":
    try:
        main(**child_settings())
    except SkylaneError as error:
        sys.exit(f"{MODEL}: {error}")

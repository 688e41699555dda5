"""Parts of the end-to-end tests: workers, vehicles, and the consistency check of latency logs."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import cv2
import numpy as np
import numpy.typing as npt
from click.testing import CliRunner
from rich.console import Console

from cloud.config import CloudConfig
from cloud.frontends.mqtt import worker_will
from cloud.node import CloudNode
from edge.config import EdgeConfig
from edge.node import EdgeNode, RunSettings
from edge.presenting.presented_run import open_presentation
from edge.reuse.opening import open_reuse
from edge.run import run
from edge.sinks.sink import Sink
from edge.sources.source import open_source
from edge.transports.mqtt_transport import MqttTransport
from ops.processes import null_worker
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from shared.inference.model import Model
from shared.mqtt.bus import Bus
from shared.runlog.latency_log import WITH_RESULT, LogWriter, Outcome, read_rows
from shared.stages import CLOUD_STAGES, EDGE_STAGES
from skylane import cli
from tests.support.gateway import running
from tests.support.memory_bus import MemoryBus
from tests.support.mqtt_bus import connect

__all__ = ["connect"]

HEIGHT, WIDTH, CLASSES = 64, 96, 12
WAIT_S = 120.0
Mask = npt.NDArray[np.uint8]
Rows = list[dict[str, str]]


def noise(seed: int, shape: tuple[int, ...]) -> Any:
    """Returns random uint8 pixels."""
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def pictures(tmp_path: Path, count: int) -> Path:
    """Makes a folder of noise images of the model's size."""
    folder = tmp_path / f"pictures-{count}"
    folder.mkdir()
    for index in range(count):
        cv2.imwrite(str(folder / f"{index:04d}.png"), noise(index, (HEIGHT, WIDTH, 3)))
    return folder


def direct(model: Model, rgb: Any) -> Mask:
    """Returns the model's mask of an RGB image, called directly."""
    mask: Mask = model.predict(np.ascontiguousarray(rgb)[None])[0]
    return mask


def null_model(model: str = "tiny", think_ms: float = 5.0) -> Model:
    """Returns a model that waits and answers one class, of the tiny model's size."""
    return null_worker.null_model(NullWorkerSettings(model=model, height=HEIGHT, width=WIDTH, think_ms=think_ms))


@contextmanager
def serving(
    bus: Callable[[CloudNode], Bus], model: Model, *, name: str | None = None, **settings: Any
) -> Iterator[CloudNode]:
    """Runs a worker in a thread; an exception in it fails the test."""
    name = name or f"worker-{uuid4().hex[:6]}"
    config = CloudConfig(**{"worker": name, "group": f"group-{name}"} | settings)
    node = CloudNode([model], config, session="s1")
    with running(node, bus(node)):
        yield node


@contextmanager
def memory_bus() -> Iterator[MemoryBus]:
    """Yields an in-memory bus."""
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True  # Spares the worker the check that it is the only one.
        yield bus


@contextmanager
def worker(url: str, model: Model, **settings: Any) -> Iterator[CloudNode]:
    """Runs a worker on a broker."""

    def bus(node: CloudNode) -> Bus:
        return connect(url, will=worker_will("w", "s1"), on_connected=node.announce, on_fault=node.threads.fault)

    with serving(bus, model, **settings) as node:
        yield node


@contextmanager
def null_worker_process(url: str, model: str, think_ms: float = 5.0) -> Iterator[NullWorkerProcess]:
    """Starts a worker in a process of its own; a stopped one is continued at the end, so that it can exit."""
    settings = NullWorkerSettings(f"process-{model}", model, HEIGHT, WIDTH, think_ms)
    with NullWorkerProcess(url, settings) as process:
        try:
            yield process
        finally:
            os.kill(process.pid, signal.SIGCONT)


class Vehicle:
    """A vehicle node and its log."""

    def __init__(self, bus: Bus, source: Path, out: Path, *, sinks: Sequence[Sink] = (), **settings: Any) -> None:
        """`settings`: those of EdgeConfig, in a closed loop unless they say otherwise, and `unresponsive_after_s`."""
        self.out = out
        self._opened = ExitStack()
        times = {key: settings.pop(key) for key in ("unresponsive_after_s",) if key in settings}
        defaults = {"vehicle": out.name, "model": "tiny", "codec": "raw", "closed_loop": True}
        config = EdgeConfig.model_validate(defaults | settings)
        self._transport = MqttTransport(bus, config, "s1")
        self.card = self._transport.wait_for_card(WAIT_S)
        self._source = open_source(str(source), topics=config.topics)
        self._log = LogWriter(out)
        reuse = self._opened.enter_context(open_reuse(config, self.card))
        self.presentation = self._opened.enter_context(open_presentation(config, self.card))
        run_settings = RunSettings(config, "s1", self.card, reuse=reuse, presentation=self.presentation, **times)
        self._node = EdgeNode(self._source, self._transport, self._log, sinks, run_settings)
        self.stop = self._node.stop
        self.counts = self._node.counts
        self.clocks = self._node.clocks
        self.reconnected = self._transport.reconnected
        self.online = self._transport.workers.online

    def play(self, on_tick: Callable[[], None] = lambda: None) -> Rows:
        """Plays to the end, closes everything, and returns the rows of the log. What `on_tick` waits for must come in time."""
        ends = time.monotonic() + 2 * WAIT_S

        def tick() -> None:
            if time.monotonic() > ends:
                self.stop()
            on_tick()

        try:
            self._node.run(tick)
        finally:
            self._transport.close()
            self._log.__exit__()
            self._source.close()
            self._opened.close()
        assert not self._node.faults
        assert time.monotonic() < ends, "what the tick waits for did not come"
        rows = list(read_rows(self.out))
        check(rows)
        assert len(rows) == self.counts().read
        return rows

    def rows(self) -> Rows:
        """Returns the rows so far."""
        return list(read_rows(self.out))

    def answered(self) -> int:
        """Returns the number of frames answered so far."""
        return self.counts().outcomes.get(Outcome.ANSWERED, 0)


def check(rows: Sequence[Mapping[str, str]]) -> None:
    """Checks what must hold for every log: unique frames, exact sums, times of each node in order."""
    assert len({(row["vehicle"], row["session"], row["sequence"]) for row in rows}) == len(rows)
    for row in rows:
        for stages in (EDGE_STAGES, CLOUD_STAGES):
            times = [int(row[f"t_{stage}_ns"]) for stage in stages if row[f"t_{stage}_ns"]]
            assert all(earlier <= later for earlier, later in pairwise(times))
        if row["outcome"] not in WITH_RESULT:
            continue
        ms = {key: Decimal(value or 0) for key, value in row.items() if key.endswith("_ms")}
        assert sum(ms[f"{stage}_ms"] for stage in EDGE_STAGES[1:]) == ms["total_ms"]
        if row["outcome"] != Outcome.ANSWERED:
            continue
        assert sum(ms[f"{stage}_ms"] for stage in CLOUD_STAGES[1:]) == ms["cloud_ms"]
        assert ms["returned_ms"] == ms["cloud_ms"] + ms["crossing_ms"]
        assert ms["uplink_ms"] + ms["downlink_ms"] == ms["crossing_ms"]
        assert ms["crossing_ms"] > 0
        assert min(ms["uplink_ms"], ms["downlink_ms"]) >= -ms["clock_error_ms"]
        assert int(row["bytes_up"]) > 0 < int(row["bytes_down"])
        assert (row["attempts"] in ("1", "2"), row["batch_size"]) == (True, "1")


def check_masks(out: Path, model: Model, count: int) -> None:
    """Checks that each mask of a run over noise images is exactly that of a direct call."""
    paths = sorted((out / "masks").rglob("*.png"))
    assert len(paths) == count
    for index, path in enumerate(paths):
        mask = direct(model, noise(index, (HEIGHT, WIDTH, 3))[..., ::-1])
        np.testing.assert_array_equal(cv2.imread(str(path), cv2.IMREAD_UNCHANGED), mask)


def count_outcomes(rows: Rows) -> Counter[tuple[str, str]]:
    """Counts the rows by outcome and reason."""
    return Counter((row["outcome"], row["reason"]) for row in rows)


def play(source: Path, url: str, out: Path, **settings: Any) -> tuple[int, str]:
    """Runs `skylane edge play`; returns its exit code and output."""
    printed = StringIO()
    config = EdgeConfig(broker=url, vehicle=out.name, model="tiny", out=out, **settings)
    return run(str(source), config, Console(file=printed, width=160)), printed.getvalue()


def skylane(*arguments: str) -> str:
    """Runs a command line in this process; returns its output."""
    done = CliRunner().invoke(cli.skylane, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout

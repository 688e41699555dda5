"""Parts of a vehicle on an in-memory bus; the test plays the workers."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.ledger import Ledger
from edge.pipeline import prepare
from edge.retrying import Retrier, RetryPolicy
from edge.sender import InFlightWindow, Sender, open_dispatcher
from edge.transports.mqtt_transport import MqttTransport
from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_directory import WorkerWatch
from edge.workers.worker_stats import WorkerStats
from shared import clock
from shared.imaging.frames import Frame
from shared.messages.load import LoadReport, WorkerLoad, pack_load
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import LOADS, WORKER_STATUS
from shared.mqtt.bus import Delivery
from shared.runlog.latency_log import LogWriter, read_rows
from shared.stages import Stage
from tests.support.memory_bus import MemoryBus
from tests.support.waiting import beside

WAIT_S = 60.0


class Vehicle:
    """A sender with its ledger, window and transport."""

    def __init__(self, bus: MemoryBus, folder: Path, card: ModelCard, **options: Any) -> None:
        """`options`: those of the sender, `window` and `deadline_ms`."""
        self.folder, self.card, self.bus = folder, card, bus
        self.stop, self.stats, self.log = threading.Event(), WorkerStats(), LogWriter(folder)
        self.window = InFlightWindow(options.pop("window", 2), self.stop)
        config = EdgeConfig(vehicle="car", model="tiny", deadline_ms=options.pop("deadline_ms", None))
        self.transport = MqttTransport(bus, config, "s1")
        self.clocks, loads = WorkerClocks(), self.transport.workers.loads
        self.ledger = Ledger(self.log, config, "s1", stats=self.stats, loads=loads)
        self.ledger.listeners.append(self.window.ended)
        self.watch = WorkerWatch(self.transport.workers, self.clocks, self.stats)
        self.dispatcher = open_dispatcher(config, self.watch)
        self.sender = Sender(
            self.transport, self.ledger, self.window, node="edge/car/s1", dispatcher=self.dispatcher, **options
        )

    def announce(self, worker: str = "w", state: NodeState = NodeState.ONLINE, session: str = "s9") -> None:
        """Publishes the status of a worker, and waits until it has arrived."""
        status = NodeStatus(state, session, 4, (self.card,) if state is NodeState.ONLINE else ())
        self.bus.publish(WORKER_STATUS.of(worker=worker), pack_status(status), qos=1, retained=True)
        self.settle()

    def report(self, worker: str = "w", session: str = "s9", **load: Any) -> None:
        """Publishes the load of a worker, idle unless `load` says otherwise, and waits until it has arrived."""
        idle = {"queue": 0, "free": 10, "wait_ms": 0.0, "answer_ms": 100.0, "spacing_ms": 100.0}
        packed = pack_load(LoadReport(session, {self.card.name: WorkerLoad(**idle | load)}))
        self.bus.publish(LOADS.of(worker=worker), packed, qos=0, retained=True)
        self.settle()

    def settle(self) -> None:
        """Waits until the bus has delivered all messages."""
        done = threading.Event()
        self.bus.publish("tests/settled", b"", qos=1, acknowledged=lambda _: done.set())
        assert done.wait(WAIT_S)

    def send(self, frame: Frame) -> FrameRecord:
        """Prepares and sends a frame."""
        record = self.ledger.begin(frame, clock.now_ns())
        record.times[Stage.TAKEN] = clock.now_ns()
        self.sender.send(record, prepare(frame, record, self.card, EdgeConfig(codec="raw")))
        return record

    def rows(self) -> list[dict[str, str]]:
        """Returns the rows so far."""
        return list(read_rows(self.folder))


class RetryingVehicle(Vehicle):
    """A vehicle with a retrier, and the frames that arrived at workers."""

    def __init__(self, bus: MemoryBus, folder: Path, card: ModelCard, *, window: int, **options: Any) -> None:
        super().__init__(bus, folder, card, window=window, keep_messages=True, **options)
        self.retrier = Retrier(self.sender, RetryPolicy(self.stats, window=window), self.watch)
        self.delivered: list[Delivery] = []
        self.arrived = threading.Semaphore(0)

    def on_frame(self, delivery: Delivery) -> None:
        """Notes a frame."""
        self.delivered.append(delivery)
        self.arrived.release()

    def retry(self, event: Callable[[], None]) -> Delivery:
        """Runs the retrier, lets `event` happen, and returns the first frame that is sent again."""
        with beside(lambda: self.retrier.run(self.stop)):
            try:
                event()
                assert self.arrived.acquire(timeout=WAIT_S)
            finally:
                self.stop.set()
        return self.delivered[-1]

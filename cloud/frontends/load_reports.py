"""Load reports: the worker's load on its retained topic, for vehicles that get no replies from it."""

import threading
from collections.abc import Callable
from itertools import islice

from cloud.node import CloudNode
from shared import clock
from shared.messages.load import LoadReport, pack_load
from shared.messages.msgpack_reader import MAX_ITEMS
from shared.messages.topics import LOADS
from shared.mqtt.bus import Bus

_INTERVAL_NS = 500_000_000  # Mean time between reports of a busy worker.
_IDLE_INTERVAL_NS = 2_000_000_000  # Time between reports of an idle worker.


class LoadReports:
    """Publishes reports: at once when the worker becomes idle or busy, and at intervals.

    Their rate is limited by a token bucket of two that gets two tokens a second. Reports at intervals leave one token for
    the next change.
    """

    def __init__(self, worker: CloudNode, bus: Bus, may_publish: Callable[[], bool]) -> None:
        """`may_publish` returns False while the worker is not online, or if another process has its name."""
        self._node = worker
        self._bus = bus
        self._may_publish = may_publish
        self._topic = LOADS.of(worker=worker.name)
        self._woken = threading.Event()
        self._closed = threading.Event()
        self._was_busy: bool | None = None  # The last reported state; None makes the next report due.
        self._full_ns = 0  # Time at which the token bucket is full again.
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread that publishes the reports."""
        self._node.in_flight.watch(self._woken.set)
        self._thread = self._node.threads.start("load-reports", self._run)

    def repeat(self) -> None:
        """Makes a report due, because the models or the connection have changed."""
        self._was_busy = None
        self._woken.set()

    def close(self) -> None:
        """Ends the reports and removes the last one from the broker."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._woken.set()
        if self._thread:
            self._thread.join(self._node.drain_s)
        if self._may_publish():
            self._bus.publish(self._topic, b"", qos=LOADS.qos, retained=True)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._woken.clear()
            if self._may_publish() and self._bus.is_connected:
                wait_ns = self._due_ns() - clock.now_ns()
                if wait_ns <= 0:
                    self._publish()
                    continue
            else:
                wait_ns = _IDLE_INTERVAL_NS
            self._woken.wait(wait_ns / 1e9)

    def _due_ns(self) -> int:
        """The time of the next report."""
        if self._was_busy is not self._is_busy:
            return self._full_ns - _INTERVAL_NS  # One token suffices.
        return self._full_ns if self._was_busy else self._full_ns - _INTERVAL_NS + _IDLE_INTERVAL_NS

    def _publish(self) -> None:
        self._was_busy = self._is_busy
        self._full_ns = max(self._full_ns, clock.now_ns()) + _INTERVAL_NS
        models = dict(islice(self._node.load_meter.loads().items(), MAX_ITEMS))
        report = LoadReport(self._node.session, models)
        self._bus.publish(self._topic, pack_load(report), qos=LOADS.qos, retained=True)

    @property
    def _is_busy(self) -> bool:
        return self._node.in_flight.total > 0

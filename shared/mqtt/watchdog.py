"""A thread that checks a connection and its network thread twice a second."""

import sys
import threading
import traceback
from collections.abc import Callable

from shared import clock
from shared.mqtt.paho_client import STALL_NS, LinkMonitor, MonitoredClient, MqttSettings

_INTERVAL_S = 0.5
_CLOSE_GRACE_NS = 1_000_000_000  # Time to write what is queued after `closing`.


class NetworkThreadError(RuntimeError):
    """The network thread has died or is stuck in a callback, which is a bug."""


class Watchdog:
    """Aborts dead connections, so that the network thread reconnects, and reports a dead or stuck network thread."""

    def __init__(
        self,
        client: MonitoredClient,
        monitor: LinkMonitor,
        settings: MqttSettings,
        *,
        on_loss: Callable[[], None],
        on_offline: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """Starts the thread.

        `on_loss` is called for each dead connection, `on_offline` once per outage that lasts `offline_notice_s`, and
        `on_fault` with a `NetworkThreadError`.
        """
        self._client = client
        self._monitor = monitor
        self._callback_timeout_ns = round(settings.callback_timeout_s * 1e9)
        self._offline_notice_ns = round(settings.offline_notice_s * 1e9)
        self._on_loss = on_loss
        self._on_offline = on_offline
        self._on_fault = on_fault
        self._closing_ns: int | None = None
        self._offline_since_ns: int | None = None  # None: connected.
        self._is_offline_reported = False
        self._checked_ns = clock.now_ns()
        self._stuck_loop_ns = 0  # `MonitoredClient.loop_ns` of the last stuck callback that was reported.
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqtt-watchdog", daemon=True)
        self._thread.start()

    def closing(self) -> None:
        """Announces that the connection will be closed: it is aborted if that takes longer than a second."""
        self._closing_ns = clock.now_ns()

    def stop(self) -> None:
        """Stops the thread."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def check(self, now_ns: int) -> None:
        """Checks the connection and the network thread once; the thread calls it."""
        if not 0 <= now_ns - self._checked_ns <= STALL_NS:
            self._client.loop_ns = now_ns  # The whole process was suspended.
        self._checked_ns = now_ns
        if self._closing_ns is not None:
            if now_ns - self._closing_ns >= _CLOSE_GRACE_NS:
                self._client.abort()
            return
        thread = self._client.network_thread
        if thread is not None and not thread.is_alive():
            self._stopped.set()
            self._on_fault(NetworkThreadError(f"thread {thread.name} has died: nothing is sent or received any more"))
        elif self._client.socket() is not None and now_ns - self._client.loop_ns > STALL_NS:
            self._report_if_stuck(thread, now_ns)  # Silence proves nothing while the network thread does not read.
        elif self._monitor.is_dead(now_ns):
            was_accepted = self._monitor.is_accepted
            self._client.abort()
            if was_accepted:
                self._on_loss()
        else:
            self._report_if_offline(now_ns)

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            self.check(clock.now_ns())

    def _report_if_offline(self, now_ns: int) -> None:
        if self._client.is_connected():
            self._offline_since_ns, self._is_offline_reported = None, False
        elif self._offline_since_ns is None:
            self._offline_since_ns = now_ns
        elif now_ns - self._offline_since_ns >= self._offline_notice_ns and not self._is_offline_reported:
            self._is_offline_reported = True
            self._on_offline()

    def _report_if_stuck(self, thread: threading.Thread | None, now_ns: int) -> None:
        loop_ns = self._client.loop_ns
        if thread is None or now_ns - loop_ns < self._callback_timeout_ns or self._stuck_loop_ns == loop_ns:
            return
        self._stuck_loop_ns = loop_ns
        frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 (the only way to a thread's stack)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        seconds = (now_ns - loop_ns) / 1e9
        self._on_fault(NetworkThreadError(f"thread {thread.name} has been in a callback for {seconds:.0f} s:\n{stack}"))

"""Looks twice a second whether a connection still carries anything, and whether its network thread still runs."""

import sys
import threading
import traceback
from collections.abc import Callable

from shared import clock
from shared.mqtt.keepalive import STALL_NS, LinkMonitor
from shared.mqtt.paho_client import WatchedClient
from shared.mqtt.settings import MqttSettings

_LOOK_S = 0.5
_GRACE_NS = 1_000_000_000  # For what is still to be written when a connection is given up on purpose.


class NetworkThreadError(RuntimeError):
    """The network thread has died, or does not come back from a callback: a bug of ours."""


class Watchdog:
    """A thread that cuts a dead connection, so that the network thread finds it so, and tells of the latter's end."""

    def __init__(
        self,
        client: WatchedClient,
        watch: LinkMonitor,
        times: MqttSettings,
        *,
        on_loss: Callable[[], None],
        on_away: Callable[[], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """Start it. `on_loss` is told of each dead connection, `on_fault` of a `NetworkThreadError`.

        `on_away` is told, once each time, that there has been no connection for a while.
        """
        self._client = client
        self._watch = watch
        self._timeout_ns = round(times.callback_s * 1e9)
        self._away_ns = round(times.away_s * 1e9)
        self._on_loss = on_loss
        self._on_away = on_away
        self._on_fault = on_fault
        self._closing_ns: int | None = None
        self._away_since_ns: int | None = None  # None: connected.
        self._is_away_told = False
        self._looked_ns = clock.now_ns()
        self._told_of_ns = 0  # The last turn of the network thread that it did not come back from in time.
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqtt-watchdog", daemon=True)
        self._thread.start()

    def closing(self) -> None:
        """The connection is about to be given up: what is not written soon is cut off, so that nobody waits for it."""
        self._closing_ns = clock.now_ns()

    def end(self) -> None:
        """End the thread."""
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look(clock.now_ns())

    def _look(self, now_ns: int) -> None:
        if not 0 <= now_ns - self._looked_ns <= STALL_NS:
            self._client.turned_ns = now_ns  # The whole process stood still.
        self._looked_ns = now_ns
        if self._closing_ns is not None:
            if now_ns - self._closing_ns >= _GRACE_NS:
                self._client.cut()
            return
        thread = self._client.network_thread
        if thread is not None and not thread.is_alive():
            self._ended.set()
            self._on_fault(NetworkThreadError(f"thread {thread.name} has died: nothing is sent or received any more"))
        elif self._client.socket() is not None and now_ns - self._client.turned_ns > STALL_NS:
            self._tell_if_stuck(thread, now_ns)  # Silence proves nothing: nobody listens.
        elif self._watch.is_dead(now_ns):
            was_accepted = self._watch.is_accepted
            self._client.cut()
            if was_accepted:
                self._on_loss()
        else:
            self._tell_if_away(now_ns)

    def _tell_if_away(self, now_ns: int) -> None:
        if self._client.is_connected():
            self._away_since_ns, self._is_away_told = None, False
        elif self._away_since_ns is None:
            self._away_since_ns = now_ns
        elif now_ns - self._away_since_ns >= self._away_ns and not self._is_away_told:
            self._is_away_told = True
            self._on_away()

    def _tell_if_stuck(self, thread: threading.Thread | None, now_ns: int) -> None:
        turned_ns = self._client.turned_ns
        if thread is None or now_ns - turned_ns < self._timeout_ns or self._told_of_ns == turned_ns:
            return
        self._told_of_ns = turned_ns
        frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 (there is no other way to a thread's stack)
        where = "".join(traceback.format_stack(frame)) if frame else ""
        seconds = (now_ns - turned_ns) / 1e9
        self._on_fault(NetworkThreadError(f"thread {thread.name} has been in a callback for {seconds:.0f} s:\n{where}"))

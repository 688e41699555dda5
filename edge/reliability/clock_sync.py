"""Probing: asks the workers, beside the frames, what their clocks say."""

import queue
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edge.reliability.worker_clocks import Clocks
from shared import clock
from shared.clock import Exchange
from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import MessageError
from shared.messages.clock_probes import Probe, pack_probe, unpack_echo

_BURST = 16  # Probes in a row to a process that is new, so that the first frames find a bound, and
_BURST_GAP_NS = 20_000_000
_GAP_NS = 500_000_000  # two a second from then on: between them a bound widens by a quarter of a millisecond.
_SPREAD = 0.2  # Of that gap, either way, so that probes keep no step with the frames.
_MOST_HZ = 32  # To all workers together, once their bursts are over.
_MAX_UNANSWERED = 512
_MAX_WAITING = 256  # Echoes that nobody has looked at yet.
_LOOK_S = 0.1  # How often a wait looks whether it was stopped.


def gap_ns(workers: int) -> int:
    """How long it is from one probe to the next to each of so many workers, about."""
    return max(_GAP_NS, workers * 10**9 // _MOST_HZ)


@dataclass(slots=True)
class _Pace:
    """When a worker is asked next."""

    session: str
    due_ns: int
    burst: int = _BURST


class Probes:
    """Which worker is to be asked when, and what to make of an echo. Knows neither wire nor thread."""

    def __init__(self, session: str, clocks: Clocks) -> None:
        self._session = session
        self._clocks = clocks
        self._paces: dict[str, _Pace] = {}
        self._sequence = 0
        self._unanswered: OrderedDict[int, tuple[str, int]] = (
            OrderedDict()
        )  # By sequence: the worker, when it was sent.
        self._chance = random.Random()

    def begin_anew(self) -> None:
        """Ask everyone a burst again: the connection is another one, and its delays with it."""
        self._paces.clear()

    def due(self, now_ns: int, online: Iterable[tuple[str, str]]) -> list[str]:
        """The workers to ask now, of those that are `online`, each with its session; and settle when they are next."""
        sessions = dict(online)
        self._paces = {name: pace for name, pace in self._paces.items() if sessions.get(name) == pace.session}
        for name, session in sessions.items():
            self._paces.setdefault(name, _Pace(session, now_ns))
        due = [name for name, pace in self._paces.items() if pace.due_ns <= now_ns]
        for name in due:
            pace = self._paces[name]
            pace.burst = max(0, pace.burst - 1)
            pace.due_ns = now_ns + (_BURST_GAP_NS if pace.burst else self._gap_ns())
        return due

    def next_ns(self) -> int | None:
        """When the next probe is due; None where nobody is there to ask."""
        return min((pace.due_ns for pace in self._paces.values()), default=None)

    def probe(self, worker: str, sent_ns: int) -> Probe:
        """The next probe to a worker; its echo is expected until many others are."""
        probe = Probe(self._session, self._sequence, sent_ns)
        self._sequence += 1
        self._unanswered[probe.sequence] = (worker, sent_ns)
        if len(self._unanswered) > _MAX_UNANSWERED:
            self._unanswered.popitem(last=False)
        return probe

    def echoed(self, worker: str, payload: Buffer, returned_ns: int) -> None:
        """An echo came in by the name of `worker`: tell the clocks, or count why it is not believed."""
        try:
            echo = unpack_echo(payload)
        except MessageError:
            self._clocks.ignore("unreadable")
            return
        exchange = Exchange(echo.sent_ns, echo.received_ns, echo.replied_ns, returned_ns)
        if echo.session != self._session:
            self._clocks.ignore("other_session")
        elif self._unanswered.get(echo.sequence) != (worker, echo.sent_ns):
            self._clocks.ignore("late_or_repeated")
        elif not exchange.is_consistent or not echo.node.startswith(f"cloud/{worker}/"):
            self._clocks.ignore("untrue")
        else:
            del self._unanswered[echo.sequence]
            self._clocks.probed(echo.node, exchange)

    def _gap_ns(self) -> int:
        return round(gap_ns(len(self._paces)) * self._chance.uniform(1 - _SPREAD, 1 + _SPREAD))


class ClockProber:
    """Probes beside the frames, so that no frame waits for them, on whatever way `ask` has."""

    def __init__(
        self, session: str, *, online: Callable[[], Iterable[tuple[str, str]]], ask: Callable[[str, bytes], None]
    ) -> None:
        """`online`: the workers that serve the model just now, each with its session.

        `ask` has a worker take a packed probe; it returns at once, and whoever hears the echo tells `echoed`.
        """
        self._session = session
        self._online = online
        self._ask = ask
        self._echoes: queue.Queue[tuple[str, Buffer, int]] = queue.Queue(_MAX_WAITING)
        self._is_another_connection = threading.Event()

    def reconnected(self) -> None:
        """The connection was lost and is there again; may be called from any thread."""
        self._is_another_connection.set()

    def echoed(self, worker: str, payload: Buffer, returned_ns: int) -> bool:
        """An echo came in by the name of `worker`; False where too many wait. May be called from any thread."""
        try:
            self._echoes.put_nowait((worker, payload, returned_ns))
        except queue.Full:
            return False
        return True

    def run(self, clocks: Clocks, stop: threading.Event) -> None:
        """Probe until stopped; the body of the probing thread."""
        probes = Probes(self._session, clocks)
        while not stop.is_set():
            if self._is_another_connection.is_set():
                self._is_another_connection.clear()
                probes.begin_anew()
            for worker in probes.due(clock.now_ns(), self._online()):
                self._ask(worker, pack_probe(probes.probe(worker, clock.now_ns())))
            self._hear(probes)

    def _hear(self, probes: Probes) -> None:
        """Take in the echoes that come until the next probe is due."""
        next_ns = probes.next_ns()
        wait_s = _LOOK_S if next_ns is None else min(_LOOK_S, max(0.0, (next_ns - clock.now_ns()) / 1e9))
        try:
            echo = self._echoes.get(timeout=wait_s)
        except queue.Empty:
            return
        probes.echoed(*echo)

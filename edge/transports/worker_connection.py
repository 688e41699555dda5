"""A link: a worker at an address, what it says of itself, and how many frames are under way to it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from edge.transports.channel import ChannelError, Line
from shared import clock
from shared.encoding.msgpack_reader import MessageError
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.clock_probes import Probe, pack_probe, unpack_echo
from shared.messages.node_status import NodeStatus, unpack_status
from shared.mqtt.backoff import ExponentialBackoff

_LOG = get_logger("edge")
_PARTS = 3  # Of a worker's node: cloud/<worker>/<session>.


@dataclass(slots=True)
class Link:
    """One worker's. `under_way` and `used` are its transport's to change."""

    address: str
    line: Line
    name: str | None = None  # The worker's; None: it is not there, as far as is known.
    problem: ChannelError | None = None  # Why not.
    under_way: int = 0  # Frames.
    used: int = 0  # The number of the last frame that was given to it.
    interrupted: threading.Event = field(default_factory=threading.Event)  # What it last said may be so no more.

    def follow(
        self, session: str, told: Callable[[str, bytes], None], left: Callable[[str], None], stop: threading.Event
    ) -> None:
        """Hear what the worker announces until stopped, again and again; the body of a thread.

        `session`: of the vehicle. `told` hears the worker's name and its packed status, `left` the name of one that is
        there no more.
        """
        back_off = ExponentialBackoff()
        limited = RateLimitedLogger(_LOG)
        while not stop.is_set():
            since_s = time.monotonic()
            self.interrupted.clear()
            reason = "a call to it failed"
            try:
                self._hear(session, told)
            except ChannelError as error:
                self.problem, reason = error, str(error)
            except MessageError as error:
                self.problem = ChannelError(f"its status cannot be read: {error}")
                reason = str(self.problem)
            name, self.name = self.name, None
            if name is not None:
                if not stop.is_set():
                    limited.warning("lost", "connection lost", address=self.address, worker=name, reason=reason)
                left(name)
            elif not stop.is_set():
                limited.warning("not reached", "worker not reached", address=self.address, reason=reason)
            stop.wait(back_off.wait_s(time.monotonic() - since_s if name else 0.0))

    def _hear(self, session: str, told: Callable[[str, bytes], None]) -> None:
        name = None
        for packed in self.line.statuses(self.interrupted):
            name = name or self._name(session, unpack_status(packed))
            if self.name is None:
                _LOG.info("connected to worker", address=self.address, worker=name)
            told(name, packed)
            self.name, self.problem = name, None

    def _name(self, session: str, status: NodeStatus) -> str:
        """The worker's name, as its clock's is; a status alone does not tell it."""
        echo = unpack_echo(self.line.echo(pack_probe(Probe(session, 0, clock.now_ns()))))
        parts = echo.node.split("/")
        if len(parts) != _PARTS or parts[2] != status.session:
            raise ChannelError(f"its clock is {echo.node}'s, its status of session {status.session}")
        return parts[1]

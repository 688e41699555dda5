"""The connection to the worker at one address: follows its status and counts its frames in flight."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from edge.transports.channel import ChannelError, RpcChannel
from shared import clock
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.clock_probes import Probe, pack_probe, unpack_echo
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_status import NodeStatus, unpack_status
from shared.mqtt.paho_client import ExponentialBackoff

_LOG = get_logger("edge")
_NODE_PARTS = 3  # cloud/<worker>/<session>.


@dataclass(slots=True)
class WorkerConnection:
    """One worker's channel and state. The transport updates `in_flight` and `last_used`."""

    address: str
    channel: RpcChannel
    name: str | None = None  # Name of the worker; None while it is not connected.
    problem: ChannelError | None = None  # Why it is not connected.
    in_flight: int = 0
    last_used: int = 0  # Number of the latest frame that was sent here.

    def follow(
        self,
        session: str,
        on_status: Callable[[str, bytes], None],
        on_lost: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        """Follows the worker's status until stopped, and reconnects; the body of a thread.

        Args:
            session: Session of the vehicle.
            on_status: Called with the worker's name and each packed status.
            on_lost: Called with the name of a worker that is no longer connected.
            stop: Ends the loop.
        """
        back_off = ExponentialBackoff()
        limited = RateLimitedLogger(_LOG)
        while not stop.is_set():
            started_s = time.monotonic()
            reason = "a call to it failed"
            try:
                self._read_statuses(session, on_status)
            except ChannelError as error:
                self.problem, reason = error, str(error)
            except MessageError as error:
                self.problem = ChannelError(f"its status cannot be read: {error}")
                reason = str(self.problem)
            name, self.name = self.name, None
            if name is not None:
                if not stop.is_set():
                    limited.warning("lost", "connection lost", address=self.address, worker=name, reason=reason)
                on_lost(name)
            elif not stop.is_set():
                limited.warning("not reached", "worker not reached", address=self.address, reason=reason)
            stop.wait(back_off.wait_s(time.monotonic() - started_s if name else 0.0))

    def _read_statuses(self, session: str, on_status: Callable[[str, bytes], None]) -> None:
        name = None
        for packed in self.channel.statuses():
            name = name or self._worker_name(session, unpack_status(packed))
            if self.name is None:
                _LOG.info("connected to worker", address=self.address, worker=name)
            on_status(name, packed)
            self.name, self.problem = name, None

    def _worker_name(self, session: str, status: NodeStatus) -> str:
        """Returns the worker's name from the echo of a clock probe: a status does not contain it."""
        echo = unpack_echo(self.channel.echo(pack_probe(Probe(session, 0, clock.now_ns()))))
        parts = echo.node.split("/")
        if len(parts) != _NODE_PARTS or parts[2] != status.session:
            raise ChannelError(f"its clock reports node {echo.node}, its status session {status.session}")
        return parts[1]

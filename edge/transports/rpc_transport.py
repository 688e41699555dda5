"""The transport without a broker: one call per frame, to one or more workers whose addresses are configured."""

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from edge.config import EdgeConfig
from edge.transports.channel import (
    CallOutcome,
    ChannelError,
    Indeterminate,
    NotDelivered,
    ProtocolAdapter,
    RpcChannel,
    RpcRefusal,
    RpcReply,
)
from edge.transports.transport import NO_WORKER, EncodedRequest, OnUndelivered, RawReply, ReplyQueue
from edge.workers.worker_clocks import ClockProber, WorkerClocks
from edge.workers.worker_directory import NoWorkerError, WorkerDirectory
from shared import clock
from shared.clock import Deadline
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.clock_probes import Probe, pack_probe, unpack_echo
from shared.messages.frame import FrameMessage, ResultMessage, Status
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MAX_MESSAGE_BYTES, MessageError
from shared.messages.node_metrics import VehicleMetrics
from shared.messages.node_status import NodeStatus, unpack_status
from shared.mqtt.paho_client import ExponentialBackoff
from shared.threads import ThreadGroup

_LOG = get_logger("edge")
_NODE_PARTS = 3  # cloud/<worker>/<session>.


@dataclass(slots=True)
class WorkerConnection:
    """One worker's channel and state. The transport updates `in_flight` and `last_used`."""

    address: str
    channel: RpcChannel
    name: str | None = None  # Name of the worker; None while it is not connected.
    problem: ChannelError | None = None  # The reason why it is not connected.
    in_flight: int = 0
    last_used: int = 0  # Number of the latest frame that was sent here.


_GRACE_S = 0.5  # Time after a frame's deadline in which the worker may still report the outcome.
_JOIN_TIMEOUT_S = 10.0
_POLL_S = 0.1


class RpcTransport:
    """Sends each frame to the worker with the fewest frames in flight. See Transport."""

    def __init__(
        self,
        adapter: ProtocolAdapter,
        channels: Mapping[str, RpcChannel],
        config: EdgeConfig,
        session: str,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        """Connects to the workers in the background; `close` closes the channels. `channels`: by worker address.

        `on_fault` is called with unexpected exceptions, on any thread.
        """
        self.replies = ReplyQueue(config.window)
        self._adapter = adapter
        self._answer_timeout_s = config.answer_timeout_s
        self._session = session
        self._on_fault = on_fault
        self.workers = WorkerDirectory(config.model, config.model_version)
        self._connections = [WorkerConnection(address, channel) for address, channel in channels.items()]
        self._lock = threading.Lock()
        self._frame_numbers = itertools.count(1)
        self._stop = threading.Event()
        self._threads = ThreadGroup(self._on_thread_failure)
        for connection in self._connections:
            self._threads.start(f"status {connection.address}", partial(self._follow, connection))

    @property
    def is_connected(self) -> bool:
        """See Transport."""
        return bool(self.workers.online())

    @property
    def has_lost_broker(self) -> bool:
        """See Transport."""
        return False

    @property
    def last_received_ns(self) -> int:
        """See Transport. Returns the current time: there is no broker whose silence could explain that of a worker."""
        return clock.now_ns()

    def ping(self) -> None:
        """See Transport. Does nothing without a broker."""

    def report(self, metrics: VehicleMetrics) -> None:
        """See Transport. Does nothing without a broker."""

    def wait_for_card(self, timeout_s: float) -> ModelCard:
        """See Transport."""
        deadline = Deadline.after_ms(timeout_s * 1e3)
        while True:
            self._threads.check()
            left_s = deadline.remaining_s()
            if self.workers.wait_until_served(min(left_s, _POLL_S)):
                return self.workers.wait_for_card(left_s)
            problems = {each.address: each.problem for each in self._connections if each.problem}
            is_refused = len(problems) == len(self._connections) and all(each.is_final for each in problems.values())
            if is_refused or (not left_s and problems):
                reasons = "; ".join(f"{address}: {problem}" for address, problem in problems.items())
                raise NoWorkerError(f"no worker serves {self.workers.model!r}: {reasons}", is_final=is_refused)
            if not left_s:
                return self.workers.wait_for_card(0.0)  # Raises an error that names other models.

    def unused(self) -> Mapping[str, str]:
        """See Transport. Leaves out workers that serve the model but were not needed."""
        serving = {name for name, _ in self.workers.online()}
        idle = [each for each in self._connections if not each.last_used and each.name not in serving]
        return {connection.address: self._problem(connection) for connection in idle}

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See Transport."""
        return self._adapter.pack(message)

    def excess(self, request: EncodedRequest) -> str:
        """See Transport."""
        is_too_large = request.size > MAX_MESSAGE_BYTES
        return f"{request.size} bytes, a worker takes {MAX_MESSAGE_BYTES}" if is_too_large else ""

    def send(
        self,
        message: FrameMessage,
        request: EncodedRequest,
        on_undelivered: OnUndelivered,
        *,
        worker: str | None = None,
    ) -> None:
        """See Transport."""
        self._send(_Call(message, request, on_undelivered, worker))

    def probe_clocks(self, clocks: WorkerClocks, stop: threading.Event) -> None:
        """See Transport."""

        def probe(worker: str, payload: bytes) -> None:
            for connection in self._connections:
                if connection.name == worker:
                    connection.channel.probe(payload, partial(prober.echoed, worker))

        prober = ClockProber(self._session, clocks, online=self.workers.online, probe=probe)
        prober.run(stop)

    def close(self) -> None:
        """See Transport."""
        self._stop.set()
        for connection in self._connections:
            connection.channel.interrupt()
            connection.channel.close()
        self._threads.join(_JOIN_TIMEOUT_S)

    def _send(self, call: "_Call") -> None:
        """Sends a frame to the least busy worker that has not been tried."""
        serving = {name for name, _ in self.workers.online()}
        with self._lock:
            usable = [each for each in self._connections if each.name in serving and each.address not in call.tried]
            if call.worker:
                usable = [each for each in usable if each.name == call.worker]
            connection = min(usable, key=lambda each: (each.in_flight, each.last_used), default=None)
            if connection is not None:
                connection.in_flight += 1
                connection.last_used = next(self._frame_numbers)
        if connection is None:
            call.on_undelivered(NO_WORKER)
            return
        deadline = call.message.deadline
        timeout_s = self._answer_timeout_s if deadline == Deadline.NEVER else deadline.remaining_s() + _GRACE_S
        connection.channel.call(call.request, deadline, timeout_s, partial(self._on_outcome, connection, call))

    def _on_outcome(self, connection: WorkerConnection, call: "_Call", outcome: CallOutcome) -> None:
        try:
            with self._lock:
                connection.in_flight -= 1
            self._handle(connection, call, outcome)
        except BaseException as error:  # noqa: BLE001  grpcio would swallow it; the node raises it.
            self._on_fault(error)

    def _handle(self, connection: WorkerConnection, call: "_Call", outcome: CallOutcome) -> None:
        name = connection.name or "unknown"
        match outcome:
            case RpcReply():
                ours = (value for key, value in outcome.metadata.items() if key.lower().startswith("skylane-"))
                size = len(outcome.body) + sum(map(len, ours))
                self.replies.offer(
                    RawReply(partial(self._read, call.message, name, outcome), size, outcome.returned_ns)
                )
            case RpcRefusal():
                refusal = _refusal(call.message, name, outcome.status, outcome.reason)
                self.replies.offer(RawReply(lambda: refusal, 0, outcome.returned_ns))
            case NotDelivered():
                if connection.name is not None:
                    self.workers.left(connection.name, is_drained=outcome.is_stopping)
                connection.channel.interrupt()
                call.tried.add(connection.address)
                self._send(call)
            case Indeterminate() if outcome.is_broken and connection.name is not None:
                self.workers.connection_lost(connection.name)

    def _read(self, frame: FrameMessage, worker: str, reply: RpcReply) -> ResultMessage:
        """Decodes a reply. A malformed one counts as the failure of its frame, because no other reply will come."""
        try:
            message = self._adapter.read(reply)
        except MessageError as error:
            return _refusal(frame, worker, Status.FAILED, f"the reply cannot be read: {error}")
        if message.id != frame.id:
            return _refusal(frame, worker, Status.FAILED, f"the reply belongs to frame {message.id}")
        return message

    def _problem(self, connection: WorkerConnection) -> str:
        if connection.name is not None:
            return f"it does not serve {self.workers.model}"
        return str(connection.problem or "no status received yet")

    def _follow(self, connection: WorkerConnection) -> None:
        """Follows the status of a worker until stopped, and reconnects; the body of a thread."""
        back_off = ExponentialBackoff()
        limited = RateLimitedLogger(_LOG)
        while not self._stop.is_set():
            started_s = time.monotonic()
            reason = "a call to it failed"
            try:
                self._read_statuses(connection)
            except ChannelError as error:
                connection.problem, reason = error, str(error)
            except MessageError as error:
                connection.problem = ChannelError(f"its status cannot be read: {error}")
                reason = str(connection.problem)
            name, connection.name = connection.name, None
            if name is not None:
                if not self._stop.is_set():
                    limited.warning("lost", "connection lost", address=connection.address, worker=name, reason=reason)
                self.workers.left(name)
            elif not self._stop.is_set():
                limited.warning("not reached", "worker not reached", address=connection.address, reason=reason)
            self._stop.wait(back_off.wait_s(time.monotonic() - started_s if name else 0.0))

    def _read_statuses(self, connection: WorkerConnection) -> None:
        name = None
        for packed in connection.channel.statuses():
            name = name or self._worker_name(connection, unpack_status(packed))
            other = next((each for each in self._connections if each is not connection and each.name == name), None)
            if other is not None:
                raise ChannelError(
                    f"its worker is named {name}, as is the one at {other.address}: give one address per worker, and each "
                    "worker its own name (skylane cloud serve --worker)"
                )
            if connection.name is None:
                _LOG.info("connected to worker", address=connection.address, worker=name)
            connection.name, connection.problem = name, None
            self.workers.update(name, packed)  # Last: whoever waits for a worker may send to it at once.

    def _worker_name(self, connection: WorkerConnection, status: NodeStatus) -> str:
        """Returns the name of a worker from the echo of a clock probe: a status does not contain it."""
        echo = unpack_echo(connection.channel.echo(pack_probe(Probe(self._session, 0, clock.now_ns()))))
        parts = echo.node.split("/")
        if len(parts) != _NODE_PARTS or parts[2] != status.session:
            raise ChannelError(f"its clock reports node {echo.node}, its status session {status.session}")
        return parts[1]

    def _on_thread_failure(self) -> None:
        try:
            self._threads.check()
        except BaseException as error:  # noqa: BLE001  The node raises it.
            self._on_fault(error)


@dataclass(frozen=True, slots=True)
class _Call:
    """A frame to send, and the workers that were tried."""

    message: FrameMessage
    request: EncodedRequest
    on_undelivered: OnUndelivered
    worker: str | None
    tried: set[str] = field(default_factory=set)  # Addresses of workers that did not get the frame.


def _refusal(frame: FrameMessage, worker: str, status: Status, reason: str) -> ResultMessage:
    """Returns the outcome of a frame in the form of a worker's message."""
    return ResultMessage(frame.id, frame.attempt, status, worker, reason)

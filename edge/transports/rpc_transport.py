"""Frames and masks without a broker: a call a frame, to one worker or to several, each by its address."""

import itertools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from edge.config import EdgeConfig
from edge.reliability.clock_sync import ClockProber
from edge.reliability.worker_clocks import Clocks
from edge.reliability.worker_directory import NoWorkerError, Workers
from edge.transports.channel import ChannelError, Dialect, Line, Outcome, Refused, Returned, Silent, Unsent
from edge.transports.credentials import Security
from edge.transports.transport import MAX_QUEUED_REPLIES, EncodedRequest, Reply, Unreachable
from edge.transports.worker_connection import Link
from shared import clock
from shared.encoding.msgpack_reader import MAX_MESSAGE_BYTES, MessageError
from shared.messages.clock_probes import MAX_PROBE_BYTES
from shared.messages.frame import FrameMessage, ResultMessage, Status
from shared.messages.model_card import ModelCard
from shared.runtime.threads import ThreadGroup

_GRACE_S = 0.5  # After a deadline the worker's word for it is still of use.
_JOIN_S = 10.0
_LOOK_S = 0.1
_NO_ONE = "no_worker"
_UNNAMED = "unknown"


@dataclass(frozen=True, slots=True)
class RpcSettings:
    """Whom a vehicle calls, and as whom."""

    addresses: tuple[str, ...]  # HOST:PORT each.
    vehicle: str
    session: str
    model: str
    on_fault: Callable[[BaseException], None]  # Told of bugs of ours, on any thread.
    version: str | None = None  # Of the model; None: whichever a worker takes for current.
    most_calls: int = 8  # Under way at a time; a frame may be sent twice.
    answer_timeout_s: float = 30.0
    security: Security = field(default_factory=Security)

    @classmethod
    def of(cls, config: EdgeConfig, session: str, on_fault: Callable[[BaseException], None]) -> "RpcSettings":
        """As the vehicle is configured; the token comes from the environment.

        Raises:
            WorkerAddressError: the authority cannot be read.
        """
        return cls(
            addresses=config.worker_addresses,
            vehicle=config.vehicle,
            session=session,
            model=config.model,
            version=config.model_version,
            most_calls=2 * config.window,  # Each frame may be sent twice.
            answer_timeout_s=config.answer_timeout_s,
            security=Security.read(config.worker_tls_ca),
            on_fault=on_fault,
        )


class RpcTransport:
    """Gives each frame to the worker with the fewest frames under way."""

    def __init__(self, dialect: Dialect, lines: Mapping[str, Line], settings: RpcSettings) -> None:
        """`lines`: by address; they are closed with the transport."""
        self.replies: queue.Queue[Reply | None] = queue.Queue(max(MAX_QUEUED_REPLIES, settings.most_calls))
        self.replies_dropped = 0
        self._dialect = dialect
        self._settings = settings
        self._workers = Workers()
        self._links = [Link(address, line) for address, line in lines.items()]
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        self._threads = ThreadGroup(self._failed)
        for link in self._links:
            told, left = partial(self._told, link), self._workers.left
            follow = partial(link.follow, settings.session, told, left, self._stop)
            self._threads.start(f"status {link.address}", follow)

    @property
    def largest_message(self) -> int:
        """See Transport."""
        return MAX_MESSAGE_BYTES

    @property
    def largest_message_told(self) -> str:
        """See Transport."""
        return f"a worker takes {MAX_MESSAGE_BYTES}"

    @property
    def is_connected(self) -> bool:
        """See Transport."""
        return bool(self.online())

    @property
    def last_received_ns(self) -> int:
        """See Transport. There is nothing between us and a worker that could be heard while the worker is not."""
        return clock.now_ns()

    def ask_for_sign(self) -> None:
        """See Transport: nobody but the workers could give one."""

    def wait_for_card(self, timeout_s: float) -> ModelCard:
        """See Transport."""
        model, version = self._settings.model, self._settings.version
        until_ns = clock.now_ns() + round(timeout_s * 1e9)
        while True:
            self._threads.check()
            left_s = max(0.0, (until_ns - clock.now_ns()) / 1e9)
            if self._workers.wait_until_serves(model, min(left_s, _LOOK_S), version):
                return self._workers.wait_for_card(model, left_s, version)
            problems = {link.address: link.problem for link in self._links if link.problem}
            is_refused = len(problems) == len(self._links) and all(problem.is_final for problem in problems.values())
            if is_refused or (not left_s and problems):
                told = "; ".join(f"{address}: {problem}" for address, problem in problems.items())
                raise NoWorkerError(f"no worker serves {model!r}: {told}", is_final=is_refused)
            if not left_s:
                return self._workers.wait_for_card(model, 0.0, version)  # Which says what is served instead.

    def wait_until_served(self, timeout_s: float) -> bool:
        """See Transport."""
        return self._workers.wait_until_serves(self._settings.model, timeout_s, self._settings.version)

    def online(self) -> Sequence[tuple[str, str]]:
        """See Transport."""
        return self._workers.online(self._settings.model, self._settings.version)

    def departed_ns(self, *, after_ns: int = 0, timeout_s: float = 0.0) -> int:
        """See Transport."""
        model, version = self._settings.model, self._settings.version
        return self._workers.departed_ns(model, version, after_ns=after_ns, timeout_s=timeout_s)

    def unused(self) -> Mapping[str, str]:
        """See Transport. One that could have been given frames is none of them."""
        serving = {name for name, _ in self.online()}
        idle = [link for link in self._links if not link.used and link.name not in serving]
        return {link.address: self._problem(link) for link in idle}

    def pack(self, message: FrameMessage) -> EncodedRequest:
        """See Transport."""
        return self._dialect.pack(message)

    def send(
        self, message: FrameMessage, parcel: EncodedRequest, unreachable: Unreachable, *, worker: str | None = None
    ) -> None:
        """See Transport."""
        self._send(_Call(message, parcel, unreachable, worker), frozenset())

    def probe_clocks(self, clocks: Clocks, stop: threading.Event) -> None:
        """See Transport."""

        def ask(worker: str, payload: bytes) -> None:
            for link in self._links:
                if link.name == worker:
                    link.line.probe(payload, partial(echoed, worker))

        def echoed(worker: str, payload: bytes, returned_ns: int) -> None:
            if len(payload) > MAX_PROBE_BYTES:
                clocks.ignore("unreadable")
            elif not prober.echoed(worker, payload, returned_ns):
                clocks.ignore("too_many")

        prober = ClockProber(self._settings.session, online=self.online, ask=ask)
        prober.run(clocks, stop)

    def close(self) -> None:
        """See Transport."""
        self._stop.set()
        for link in self._links:
            link.interrupted.set()
            link.line.close()
        self._threads.join(_JOIN_S)

    def _send(self, call: "_Call", tried: frozenset[str]) -> None:
        """Give a frame to the least busy of the links that were not tried; where there is none it reaches nobody."""
        serving = {name for name, _ in self.online()}
        with self._lock:
            links = [link for link in self._links if link.name in serving and link.address not in tried]
            asked = [link for link in links if link.name == call.worker] if call.worker else links
            link = min(asked, key=lambda each: (each.under_way, each.used), default=None)
            if link is not None:
                link.under_way += 1
                link.used = next(self._numbers)
        if link is None:
            call.unreachable(_NO_ONE)
            return
        budget_ms = call.message.budget_ms
        timeout_s = self._settings.answer_timeout_s if budget_ms is None else budget_ms / 1e3 + _GRACE_S
        link.line.call(call.parcel, budget_ms, timeout_s, partial(self._ended, link, call, tried))

    def _ended(self, link: Link, call: "_Call", tried: frozenset[str], outcome: Outcome) -> None:
        """A call is over; runs on a thread of the line's, whose library would swallow what is raised here."""
        try:
            with self._lock:
                link.under_way -= 1
            self._take(link, call, tried, outcome)
        except BaseException as error:  # noqa: BLE001  Whatever it is, the node raises it.
            self._settings.on_fault(error)

    def _take(self, link: Link, call: "_Call", tried: frozenset[str], outcome: Outcome) -> None:
        name = link.name or _UNNAMED
        match outcome:
            case Returned():
                size = len(outcome.body) + sum(len(value) for key, value in outcome.beside.items() if _is_ours(key))
                self._reply(Reply(partial(self._read, call.message, name, outcome), size, outcome.returned_ns))
            case Refused():
                refusal = _refusal(call.message, name, outcome.status, outcome.reason)
                self._reply(Reply(lambda: refusal, 0, outcome.returned_ns))
            case Unsent():
                if link.name is not None:
                    self._workers.left(link.name, is_drained=outcome.is_stopping)
                link.interrupted.set()
                self._send(call, tried | {link.address})
            case Silent() if outcome.is_broken and link.name is not None:
                self._workers.broke(link.name)

    def _reply(self, reply: Reply) -> None:
        try:
            self.replies.put_nowait(reply)
        except queue.Full:
            with self._lock:
                self.replies_dropped += 1

    def _read(self, frame: FrameMessage, worker: str, returned: Returned) -> ResultMessage:
        """The answer to a frame; where it is none, that is its answer: no other will come."""
        try:
            message = self._dialect.read(returned)
        except MessageError as error:
            return _refusal(frame, worker, Status.FAILED, f"the answer cannot be read: {error}")
        if message.id != frame.id:
            return _refusal(frame, worker, Status.FAILED, f"the answer is one to frame {message.id}")
        return message

    def _problem(self, link: Link) -> str:
        if link.name is not None:
            return f"it does not serve {self._settings.model}"
        return str(link.problem or "it said nothing")

    def _told(self, link: Link, name: str, packed: bytes) -> None:
        other = next((each for each in self._links if each is not link and each.name == name), None)
        if other is not None:
            raise ChannelError(
                f"its worker is {name}, as is that of {other.address}: name one address of each, and each by another name "
                "(skylane cloud serve --worker)"
            )
        self._workers.told(name, packed)

    def _failed(self) -> None:
        try:
            self._threads.check()
        except BaseException as error:  # noqa: BLE001  Whatever it is, the node raises it.
            self._settings.on_fault(error)


@dataclass(frozen=True, slots=True)
class _Call:
    """A frame that is to be sent."""

    message: FrameMessage
    parcel: EncodedRequest
    unreachable: Unreachable
    worker: str | None


def _refusal(frame: FrameMessage, worker: str, status: Status, reason: str) -> ResultMessage:
    """What became of a frame, as if the worker had said it."""
    return ResultMessage(frame.id, frame.attempt, status, worker, reason)


def _is_ours(key: str) -> bool:
    return key.lower().startswith("skylane-")

"""The vehicle node: wires source, replay, pipeline, sender, receiver and sinks together."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edge.config import EdgeConfig
from edge.pacing.frame_queue import FrameQueue
from edge.pacing.replay import Pace, Pacer, ReadAhead, Schedule
from edge.pipeline import Pipeline, Preparation
from edge.receiver import Receiver
from edge.reliability.ledger import Ledger, Tally
from edge.reliability.liveness import SILENCE_S, Silence
from edge.reliability.retry_policy import RetryPolicy
from edge.reliability.retrying import Retrier
from edge.reliability.worker_clocks import Clocks
from edge.reliability.worker_stats import WorkerStats
from edge.sender import Sender, Window
from edge.sinks.sink import Sink, SinkFeed
from edge.transports.transport import Transport
from shared.errors import SkylaneError
from shared.imaging.frames import FrameSource
from shared.messages.model_card import ModelCard
from shared.runlog.latency_log import LogWriter
from shared.runtime.health_file import HealthFile
from shared.runtime.threads import ThreadGroup

_TICK_S = 0.1
_DRAIN_S = 5.0  # What a stopped run still waits for answers.
_JOIN_S = 60.0


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How one run is played."""

    vehicle: str
    session: str
    schedule: Schedule
    preparation: Preparation
    window: int = 4
    queue: int = 1  # Due frames of a camera that may wait for a place in the window.
    deadline_ms: float | None = None
    answer_timeout_s: float = 30.0
    retries: bool = True  # Whether a frame that meets silence is sent once more.
    retry_after_ms: float | None = None  # The silence that is enough; None: by what answers take.
    silence_s: float = SILENCE_S  # Of all workers, after which nobody is there.
    health_file: Path | None = None

    @classmethod
    def of(cls, config: EdgeConfig, session: str, card: ModelCard, *, is_live: bool) -> "RunSettings":
        """Returns the settings of a run with a model as the vehicle is configured; `is_live`: its source is a camera."""
        pace = Pace.LIVE if is_live else Pace.CLOSED_LOOP if config.closed_loop else Pace.OPEN_LOOP
        return cls(
            vehicle=config.vehicle,
            session=session,
            schedule=Schedule(
                pace=pace,
                arrivals=config.arrivals,
                rate=config.rate,
                arrival_rate_hz=config.arrival_rate_hz or 1.0,
                seed=config.seed or 0,
                burst=config.burst,
                loop=config.loop,
                delay_s=config.delay_s,
                read_ahead=config.read_ahead_queue_size,
                frames=config.frames,
            ),
            preparation=Preparation(
                card=card,
                codec=config.codec,
                quality=config.quality,
                demosaic=config.demosaic,
                resize=config.resize,
                resize_at=config.resize_at,
                want=config.want,
                version=config.model_version,
            ),
            window=config.window,
            queue=config.queue,
            deadline_ms=config.deadline_ms,
            answer_timeout_s=config.answer_timeout_s,
            retries=config.retry,
            retry_after_ms=config.retry_after_ms,
            health_file=config.health_file,
        )

    @property
    def node(self) -> str:
        """This process's name in stamps."""
        return f"edge/{self.vehicle}/{self.session}"


class EdgeNode:
    """One run: every frame of a source is sent or accounted for."""

    def __init__(
        self,
        source: FrameSource,
        transport: Transport,
        log: LogWriter,
        sinks: Sequence[Sink],
        settings: RunSettings,
    ) -> None:
        self._stopped = threading.Event()  # No more frames are taken in.
        self._over = threading.Event()  # No more answers are, either.
        self._end: SkylaneError | None = None
        self._threads = ThreadGroup(self._fail)
        self._settings = settings
        self._window = Window(settings.window, self._stopped)
        self._transport = transport
        self._clocks = Clocks()
        self._pulse = WorkerStats()
        self._ledger = Ledger(
            log,
            vehicle=settings.vehicle,
            session=settings.session,
            model=settings.preparation.card.name,
            deadline_ms=settings.deadline_ms,
            answer_timeout_s=settings.answer_timeout_s,
            clocks=self._clocks,
            pulse=self._pulse,
            on_closed=self._window.give_back_place,
        )
        self._slot = FrameQueue(settings.queue)
        self._ahead = ReadAhead(source, settings.schedule, self._stopped)
        self._pacer = Pacer(self._ahead, self._slot, self._ledger, settings.schedule, self._stopped)
        patience_s = settings.answer_timeout_s if settings.schedule.pace is Pace.CLOSED_LOOP else 0.0
        silence = Silence(
            self._pulse,
            self._clocks,
            last_received_ns=lambda: transport.last_received_ns,
            ask=transport.ask_for_sign,
            enough_s=settings.silence_s,
        )
        sender = Sender(
            transport,
            self._ledger,
            self._window,
            node=settings.node,
            silence=silence,
            patience_s=patience_s,
            keeps=settings.retries,
        )
        suspicions = RetryPolicy(self._pulse, window=settings.window, after_ms=settings.retry_after_ms)
        self._retrier = Retrier(transport, self._ledger, suspicions, self._pulse, self._clocks)
        self._pipeline = Pipeline(self._slot, self._window, sender, self._ledger, settings.preparation)
        self._feed = SinkFeed(sinks, settings.preparation.card)
        self._health = HealthFile(settings.health_file)
        self._receiver = Receiver(transport, self._ledger, self._feed.put, self._over, settings.preparation.card.task)

    @property
    def faults(self) -> Sequence[SkylaneError]:
        """What the run survived: why the source or the run ended early, what kept sinks from writing."""
        early = [fault for fault in (self._ahead.fault, self._end) if fault]
        return early + self._feed.faults

    @property
    def overtaken(self) -> int:
        """How many results came too late for the sinks that need their order."""
        return self._feed.overtaken

    def tally(self) -> Tally:
        """Where the run stands."""
        tally = self._ledger.tally()
        dropped = self._transport.replies_dropped
        return replace(tally, ignored_answers={**tally.ignored_answers, "too_many": dropped}) if dropped else tally

    def fault(self, error: BaseException) -> None:
        """Something went wrong in a callback of the bus."""
        self._threads.fault(error)

    def end(self, reason: SkylaneError) -> None:
        """End early and in order: take no more frames, wait for those in flight; any thread may call it."""
        self._end = reason
        self.stop()

    def stop(self) -> None:
        """Take no more frames; may be called from a signal handler. Frames in flight are waited for, for a while."""
        self._stopped.set()

    def run(self, on_tick: Callable[[], None]) -> Tally:
        """Play to the end, or until stopped; `on_tick` is called ten times a second. Returns the balanced tally."""

        def tick() -> None:
            on_tick()
            self._health.update(is_online=self._transport.is_connected)

        sending = self._threads.start("pipeline", self._pipeline.run)
        writing = self._threads.start("sinks", self._feed.run)
        receiving = self._threads.start("receiver", self._receiver.run)
        self._threads.start("clocks", partial(self._transport.probe_clocks, self._clocks, self._over))
        if self._settings.retries:
            self._threads.start("retrier", partial(self._retrier.run, self._over))
        self._threads.start("pacer", self._pacer.run)
        self._threads.start("reader", self._ahead.run)
        try:
            while sending.is_alive():
                sending.join(_TICK_S)
                tick()
            self._wait_for_answers(tick)
        finally:
            self._stopped.set()
            self._over.set()
            self._health.remove()
            receiving.join(_JOIN_S)
            self._feed.end()
            self._feed.wait_until_written(writing, _JOIN_S)  # Sinks have the lowest priority, and may write for long.
            try:
                self._threads.join(_JOIN_S)
            finally:  # Whatever went wrong, the frames that were read have their rows.
                for journey in self._slot.drain():
                    self._ledger.drop(journey, "stopped")
                self._ledger.give_up_all("the run ended")
        on_tick()
        return self._balanced()

    def _wait_for_answers(self, on_tick: Callable[[], None]) -> None:
        """Every frame in flight ends by answer or by time; a stopped run gives up sooner."""
        waited_s = 0.0
        while not self._ledger.wait_until_idle(_TICK_S):
            on_tick()
            if self._stopped.is_set():
                waited_s += _TICK_S
            if waited_s > _DRAIN_S or self._over.is_set():
                return

    def _balanced(self) -> Tally:
        """The promise: read = the sum of all outcomes."""
        tally = self._ledger.tally()
        assert tally.read == tally.closed, f"{tally.read} frames read, {tally.closed} accounted for"
        return tally

    def _fail(self) -> None:
        self._stopped.set()
        self._over.set()

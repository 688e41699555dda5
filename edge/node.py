"""The vehicle node: connects source, pacing, pipeline, sender, receiver and listeners; every frame gets one row."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from edge.config import EdgeConfig
from edge.frame_record import FrameListener
from edge.ledger import LastMinute, Ledger, RunCounts, VehicleFrameLog
from edge.pacing import FrameQueue, Pacer, ReadAhead, Timeline
from edge.pipeline import Pipeline, PreparedImages
from edge.presenting.presentation import Presentation
from edge.receiver import Receiver
from edge.retrying import Retrier, RetryPolicy
from edge.reuse.opening import Reuse
from edge.reuse.step import ReuseStep
from edge.sender import InFlightWindow, Sender, open_dispatcher
from edge.sinks.sink import Sink
from edge.sinks.writer import SinkWriter
from edge.sources.source import FrameSource
from edge.transports.transport import Transport, TransportEvents
from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_directory import UNRESPONSIVE_AFTER_S, LivenessMonitor, WorkerWatch
from edge.workers.worker_stats import WorkerStats
from shared import clock
from shared.errors import SkylaneError
from shared.messages.model_card import ModelCard
from shared.messages.node_metrics import METRICS_INTERVAL_NS
from shared.runlog.latency_log import LogWriter
from shared.runtime.health_file import HealthFile
from shared.runtime.periodic import run_round
from shared.threads import ThreadGroup

_TICK_S = 0.1
DRAIN_S = 5.0  # Time that a stopped run waits for answers.
_JOIN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of one run: the vehicle's configuration and the optional parts."""

    config: EdgeConfig
    session: str
    card: ModelCard
    is_live: bool = False  # True if the source is a camera.
    reuse: Reuse | None = None  # Answers frames that need not be sent.
    presentation: Presentation | None = None  # Presents an output for every frame when it is due.
    listeners: Sequence[FrameListener] = ()  # Further listeners: the view, metrics, traces.
    unresponsive_after_s: float = UNRESPONSIVE_AFTER_S

    @property
    def node(self) -> str:
        """Name of this process in stamps."""
        return f"edge/{self.config.vehicle}/{self.session}"


class EdgeNode:
    """One run: sends the frames of a source, and accounts for each of them."""

    def __init__(
        self,
        source: FrameSource,
        transport: Transport,
        log: LogWriter,
        sinks: Sequence[Sink],
        settings: RunSettings,
        *,
        events: TransportEvents | None = None,
    ) -> None:
        self._stopped = threading.Event()  # Set when no more frames are sent.
        self._finished = threading.Event()  # Set when no more replies are processed.
        self._events = events or TransportEvents()
        self._threads = ThreadGroup(self._on_thread_failure)
        self._presenters = ThreadGroup(self._on_thread_failure)  # A separate group, because a plug-in may hang.
        self._settings = settings
        self._transport = transport
        self.clocks = WorkerClocks()
        config, card = settings.config, settings.card
        window = InFlightWindow(config.window, self._stopped)
        stats = WorkerStats()
        self._ledger = ledger = Ledger(
            log, config, settings.session, clocks=self.clocks, stats=stats, loads=transport.workers.loads
        )
        self._queue = FrameQueue(config.queue)
        self._read_ahead = ReadAhead(source, config, self._stopped)
        self._presentation = presentation = settings.presentation
        watch = WorkerWatch(transport.workers, self.clocks, stats)
        liveness = LivenessMonitor(
            watch,
            last_received_ns=lambda: transport.last_received_ns,
            ping=transport.ping,
            unresponsive_after_s=settings.unresponsive_after_s,
        )
        waits = config.closed_loop and not settings.is_live
        sender = Sender(
            transport,
            ledger,
            window,
            node=settings.node,
            dispatcher=open_dispatcher(config, watch),
            liveness=liveness,
            worker_wait_s=config.answer_timeout_s if waits else 0.0,
            keep_messages=config.retry,
        )
        self._pacer = Pacer(
            self._read_ahead,
            self._queue,
            ledger,
            config,
            self._stopped,
            is_live=settings.is_live,
            on_due=None if presentation is None else presentation.offer,
            overflow_reason=partial(sender.unsent_reason, "window"),
        )
        policy = RetryPolicy(stats, window=config.window, after_ms=config.retry_after_ms)
        self._retrier = Retrier(sender, policy, watch)
        self._writer = SinkWriter(sinks, card, ledger.first_open)
        step = None if settings.reuse is None else ReuseStep(settings.reuse, ledger, self._writer, card, waits)
        self._pipeline = Pipeline(
            queue=self._queue,
            window=window,
            sender=sender,
            ledger=ledger,
            card=card,
            config=config,
            options=config.want,
            images=PreparedImages() if presentation is None else presentation.images,
            reuse=step,
        )
        self._last_minute = LastMinute()
        # A result is known to the presenter and the gate before the window has room for the next frame. The sinks are last,
        # as they may be slow.
        ledger.listeners += [each.ended for each in (presentation, step) if each is not None]
        ledger.listeners += [VehicleFrameLog().ended, self._last_minute.ended, *settings.listeners, window.ended]
        ledger.listeners += [self._writer.ended] if sinks else []
        self._health = HealthFile(config.health_file)
        self._report_due_ns = 0  # Time of the next report of the last minute.
        self._receiver = Receiver(transport, ledger, self._finished, card)

    @property
    def faults(self) -> Sequence[SkylaneError]:
        """The errors that did not abort the run: of the source, of a run that ended early, and of sinks."""
        early = [fault for fault in (self._read_ahead.fault, self._events.end_reason) if fault]
        return early + self._writer.faults

    @property
    def results_too_late(self) -> int:
        """The number of results that came too late for the sinks that need them in order."""
        return self._writer.too_late

    @property
    def pacing_notes(self) -> Sequence[str]:
        """Notes on frames that were not due at their recorded times, such as shortened pauses."""
        shortened = [note if times == 1 else f"{times} {note}" for note, times in self._pacer.shortened.items()]
        return [*shortened, *self._pacer.timeline.notes]

    @property
    def timeline(self) -> Timeline | None:
        """The timeline, which can pause the playback; None for a camera."""
        return None if self._settings.is_live else self._pacer.timeline

    @property
    def has_schedule(self) -> bool:
        """True if each frame has a due time; False if a frame is due when earlier ones have ended."""
        return not self._settings.config.closed_loop

    def counts(self) -> RunCounts:
        """Returns the totals so far."""
        counts = self._ledger.counts()
        dropped = self._transport.replies.dropped
        return replace(counts, ignored_answers={**counts.ignored_answers, "too_many": dropped}) if dropped else counts

    def stop(self) -> None:
        """Ends sending; `run` then waits up to `DRAIN_S` for frames in flight. May be called from a signal handler."""
        self._stopped.set()

    def run(self, on_tick: Callable[[], None]) -> RunCounts:
        """Plays to the end, or until stopped, and returns the final counts. Calls `on_tick` ten times per second.

        Raises the first error of a thread or of the transport that aborts the run.
        """

        def tick() -> None:
            run_round("progress", on_tick)
            if self._events.faults:
                raise self._events.faults[0]
            if self._events.end_reason is not None:
                self.stop()
            run_round("health", lambda: self._health.update(is_online=self._transport.is_connected))
            if (now_ns := clock.now_ns()) >= self._report_due_ns:
                self._report_due_ns = now_ns + METRICS_INTERVAL_NS
                run_round("metrics", self._report)

        sending = self._threads.start("pipeline", self._pipeline.run)
        writing = self._threads.start("sinks", self._writer.run)
        receiving = self._threads.start("receiver", self._receiver.run)
        self._threads.start("clocks", partial(self._transport.probe_clocks, self.clocks, self._finished))
        if self._settings.config.retry:
            self._threads.start("retrier", partial(self._retrier.run, self._finished))
        presentation = self._presentation
        presenting = None if presentation is None else self._presenters.start("presenter", presentation.run)
        self._threads.start("pacer", self._pacer.run)
        self._threads.start("reader", self._read_ahead.run)
        try:
            while sending.is_alive():
                sending.join(_TICK_S)
                tick()
            self._wait_for_answers(tick)
        finally:
            self._stopped.set()
            self._finished.set()
            self._health.remove()
            receiving.join(_JOIN_TIMEOUT_S)
            if presentation is not None:
                presentation.end()
            self._writer.end()
            # Sinks have the lowest priority and may be slow.
            self._writer.wait_until_written(writing, _JOIN_TIMEOUT_S)
            try:
                self._threads.join(_JOIN_TIMEOUT_S)
                self._wait_for_presenter(presenting)
            finally:  # Every frame gets its row, even after a failure.
                for record in self._queue.drain():
                    self._ledger.drop(record, "stopped")
                self._ledger.close_all("the run ended")
                if presentation is not None:
                    presentation.close()
        on_tick()
        counts = self._ledger.counts()
        assert counts.read == counts.closed, f"{counts.read} frames read, {counts.closed} accounted for"
        return counts

    def _report(self) -> None:
        """Publishes the metrics of the last minute, which `skylane status` and `skylane top` show."""
        settings = self._settings
        metrics = self._last_minute.metrics(settings.session, settings.config.model, self._ledger.counts())
        self._transport.report(metrics)

    def _wait_for_presenter(self, presenting: threading.Thread | None) -> None:
        """Waits until every tick was presented; a presenter that hangs is not waited for."""
        while presenting and presenting.is_alive() and self._presentation and not self._presentation.hangs:
            presenting.join(_TICK_S)
        self._presenters.abandon()
        self._presenters.check()

    def _wait_for_answers(self, on_tick: Callable[[], None]) -> None:
        """Waits until every frame in flight has ended; a stopped run waits for `DRAIN_S` only."""
        waited_s = 0.0
        while not self._ledger.wait_until_idle(_TICK_S):
            on_tick()
            if self._stopped.is_set():
                waited_s += _TICK_S
            if waited_s > DRAIN_S or self._finished.is_set():
                return

    def _on_thread_failure(self) -> None:
        self._stopped.set()
        self._finished.set()

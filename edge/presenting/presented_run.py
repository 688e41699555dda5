"""Opens the presentation of a run, and records its outputs.

Every tick has a row in `presented.csv`; the sinks of RUN/presented get the outputs.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from edge.config import EdgeConfig
from edge.presenting.flow import FlowSize
from edge.presenting.fuse import LocalResults
from edge.presenting.fusion_table import shipped_fusion
from edge.presenting.presentation import HUNG, SKIPPED, Presentation
from edge.presenting.presenter import PRESENTERS, PresenterParts
from edge.reuse.opening import find_local_model, opened_local_model
from edge.sinks.sink import FrameResult, PresentedTick, Sink
from edge.sinks.writer import SinkWriter
from shared import clock
from shared.errors import SkylaneError
from shared.files import file_sha256
from shared.messages.model_card import ModelCard
from shared.registry import load
from shared.runlog.latency_log import LogError
from shared.runlog.percentiles import percentiles, shown
from shared.runlog.presented_log import HOLD, PRESENTED_NAME, OutputOrigin, PresentedLog
from shared.task import task_named
from shared.threads import ThreadGroup

OUTPUTS_FOLDER = "presented"  # Subfolder of a run with the files of the sinks.
_STALL_S = 60.0
_RECENT_TICKS = 1000  # More ticks than pass between the arrival of a result and the call that reports it.


class PresenterError(SkylaneError):
    """A presenter does not support the model's task."""


@contextmanager
def open_presentation(config: EdgeConfig, card: ModelCard) -> Iterator[Presentation | None]:
    """Yields the configured presentation; None if no presenter is configured.

    Raises:
        SkylaneError: the presenter, the local model or the measured reliability cannot be used for this model.
    """
    if config.present is None:
        yield None
        return
    entry = PRESENTERS[config.present]
    if not entry.holds(task_named(card.task)):
        others = " or ".join(name for name, other in PRESENTERS.items() if other.holds(task_named(card.task)))
        raise PresenterError(
            f"presenter {config.present} moves results with the image, and model {card.name} answers {card.task}: use "
            f"--present {others}"
        )
    presenter = load("presenter", PRESENTERS, config.present)
    if not entry.needs_local:
        parts = PresenterParts(card, clock_ns=clock.now_ns)
        presenter(parts)  # Raises the error of a file that cannot be used, before the first frame.
        yield Presentation(partial(presenter, parts), card, config)
        return
    # The pipeline opens its own local model, because only one thread may use a model.
    with opened_local_model(find_local_model(config, card), config) as local:
        results, local_card = LocalResults(local), local.model.card
        fusion = config.fusion or shipped_fusion(card.name, local_card.name)
        parts = PresenterParts(card, results, fusion, local_card, results.problem, clock.now_ns)
        presenter(parts)
        presentation = Presentation(partial(presenter, parts), card, config, runs_local=True)
        model = {"name": local_card.name, "version": local_card.version, "sha256": local_card.sha256}
        file = None if fusion is None else {"file": fusion.name, "sha256": file_sha256(fusion)}
        presentation.describe_parts = lambda: {"local_model": model | local.counts(), "fusion": file}
        yield presentation


class OutputRecorder:
    """Records every tick. The presenter never waits for the sinks: they miss an output if their queue is full.

    Enter it before the first tick, and leave it after the last one.
    """

    def __init__(
        self,
        presentation: Presentation,
        log: PresentedLog,
        sinks: Sequence[Sink],
        config: EdgeConfig,
        card: ModelCard,
    ) -> None:
        self._presentation = presentation
        self._log = log
        self._writer = SinkWriter(sinks, card)
        self._config = config
        self._threads = ThreadGroup(lambda: None)
        self._not_ready = 0  # Ticks without an output known to be ready; the last ones are checked again.
        self._recently_not_ready: deque[tuple[str, int]] = deque(maxlen=_RECENT_TICKS)
        self._after_due_ms: Counter[int] = Counter()  # Outputs by their time after the tick; bounds the memory.
        presentation.listeners.append(self._add)

    def __enter__(self) -> Self:
        self._writing = self._threads.start("output-sinks", self._writer.run)
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.end()
        self._writer.wait_until_written(self._writing, _STALL_S)
        self._threads.join(_STALL_S)

    @property
    def faults(self) -> list[SkylaneError]:
        """Failures of sinks, and of the log."""
        faults = list(self._writer.faults)
        if self._log.rows_lost:
            faults.append(
                LogError(f"{self._log.rows_lost} rows of {PRESENTED_NAME} were not written: {self._log.fault}")
            )
        return faults

    def record(self) -> dict[str, Any]:
        """Returns the section of the manifest, with what was counted so far."""
        return {
            "kind": self._config.present,
            **self._presentation.describe_parts(),
            **self._log.counts.record(),
            "skipped": self._log.counts.reasons[SKIPPED],
            "restarts": self._presentation.restarts,
            "outputs_not_written": self._writer.left_out,
            "rows_lost": self._log.rows_lost,
        }

    def lines(self) -> Iterator[str]:
        """Yields how many frames had an output at their tick and for it, and warnings, for the summary."""
        counts = self._log.counts
        total, missing = counts.ticks.total(), counts.ticks[OutputOrigin.NONE]
        made_of = _listed(
            {origin.value: number for origin, number in counts.ticks.items() if origin is not OutputOrigin.NONE}
        )
        ready = total - self._not_ready + sum(self._is_ready(*tick) for tick in self._recently_not_ready)
        yield f"At the tick: {ready} of {total} frames had an output that was ready when they were due"
        p50, p95 = (shown(value, 0) for value in percentiles(list(self._after_due_ms.elements()), (50, 95)))
        late = f", ready {p50} ms after they were due (p50; p95 {p95} ms)" if missing < total else ""
        yield f"For the tick: {total - missing} of {total} frames got an output{made_of}{late}"
        if missing:
            yield f"{missing} of {total} frames got none{_listed(counts.reasons)}"
        moved = counts.ticks[OutputOrigin.WARPED] + counts.ticks[OutputOrigin.FUSED]
        if self._config.present != HOLD and missing < total and not moved:
            without_flow = counts.flows[FlowSize.NONE]
            yield (
                f"WARNING: --present {self._config.present} moved no output: {without_flow} of {total} had no optical flow "
                "(no time for it, images too small, or a gap since the frame of the result), the others needed none or had "
                "no result of a worker"
            )
        if skipped := counts.reasons[SKIPPED]:
            yield (
                f"WARNING: the presenter skipped {skipped} of {total} frames, as it was not done with the one before: "
                "choose a lower rate or another --present"
            )
        if hung := counts.reasons[HUNG]:
            yield (
                f"WARNING: the presenter hung and left {hung} of {total} frames without an output: choose another "
                "--present, or find out what the presenter waits for"
            )
        if self._presentation.restarts:
            yield (
                "WARNING: a camera started again (--loop), or changed its size, encoding or stamps, "
                f"{self._presentation.restarts} times; no result from before was presented after it"
            )
        if self._writer.left_out:
            yield (
                f"WARNING: {self._writer.left_out} outputs are missing in {OUTPUTS_FOLDER}/, as the sinks are slower than the "
                "cameras: choose fewer of them with --sink"
            )

    def _is_ready(self, camera: str, due_ns: int) -> bool:
        """Returns whether a tick had an output when it was due: an output of a camera stays until the next one."""
        first_ns = self._presentation.first_ready_ns.get(camera)
        return first_ns is not None and first_ns <= due_ns

    def _add(self, tick: PresentedTick) -> None:
        """Counts a tick, writes its row, and queues its output for the sinks."""
        if not self._is_ready(tick.camera, tick.due_ns):
            self._not_ready += 1
            self._recently_not_ready.append((tick.camera, tick.due_ns))
        if tick.origin is not OutputOrigin.NONE:
            self._after_due_ms[round(tick.after_due_ns / 1e6)] += 1
        self._log.write(tick)
        frame = tick_frame(tick, self._config)
        self._writer.offer(tick if frame is None or frame.result is None else frame)


def tick_frame(tick: PresentedTick, config: EdgeConfig) -> FrameResult | None:
    """Returns the frame of a tick, with the result None if it has no output; None if the tick was not taken."""
    if tick.image is None or tick.geometry is None:
        return None
    is_local = tick.origin is OutputOrigin.LOCAL
    return FrameResult(
        camera=tick.camera,
        sequence=tick.sequence,
        frame_index=tick.frame_index,
        stamp_ns=tick.stamp_ns,
        source_ns=tick.source_ns,
        image=tick.image,
        result=tick.result,
        geometry=tick.geometry,
        model=(config.local_model or "") if is_local else "",
        origin=tick.origin,
        age_ns=tick.age_ns,
        source_sequence=tick.source_sequence,
        camera_id=tick.camera_id,
    )


def _listed(numbers: Mapping[str, int]) -> str:
    """Returns numbers by name in brackets; empty without any."""
    listed = ", ".join(f"{number} {name}" for name, number in sorted(numbers.items(), key=lambda each: -each[1]))
    return f" ({listed})" if listed else ""

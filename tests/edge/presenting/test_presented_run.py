"""The recorder of outputs."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge.config import EdgeConfig
from edge.presenting.presentation import Presentation
from edge.presenting.presented_run import OutputRecorder
from edge.presenting.presenter import HoldPresenter, PresenterParts
from edge.sinks.sink import FrameResult, PresentedTick, Sink
from edge.sinks.writer import backlog
from shared.errors import SkylaneError
from shared.imaging.geometry import Resize, plan
from shared.runlog.presented_log import OutputOrigin, PresentedLog, read_presented
from tests.edge.samples import CARD, HEIGHT, WIDTH, RecordingSink
from tests.full_disk import disk_of

WAIT_S = 60.0
MASK = np.zeros((HEIGHT, WIDTH), np.uint8)
CONFIG = EdgeConfig(present="hold", local_model="small")


class OutputSink(RecordingSink):
    """A sink that stores missing outputs as well."""

    def __init__(self, on_write: Callable[[FrameResult], object] = lambda _: None) -> None:
        super().__init__(on_write)
        self.missing: list[tuple[int, PresentedTick]] = []  # Each with the number of outputs before it.

    def write_missing(self, missing: PresentedTick) -> None:
        """See MissingOutputSink."""
        self.missing.append((len(self.frames), missing))


def _tick(sequence: int, origin: OutputOrigin = OutputOrigin.REMOTE, **fields: Any) -> PresentedTick:
    is_missing = origin is OutputOrigin.NONE
    facts: dict[str, Any] = {"reason": "too_old"}
    if not is_missing:
        facts = {"result": MASK, "flow": "quarter", "age_ns": 5, "source_sequence": 0, "processing_ns": 6}
    times = {"frame_stamp_ns": 1, "source_ns": 2, "due_ns": 3, "presented_ns": 4}
    given = {"camera": "/left", "session": "s1", "frame_index": sequence, **times}
    image = {
        "image": np.zeros((HEIGHT, WIDTH, 3), np.uint8),
        "geometry": plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
    }
    return PresentedTick(tick=sequence, origin=origin, **{**given, **facts, **image, **fields})


def _record(
    folder: Path,
    ticks: Sequence[PresentedTick],
    *sinks: Sink,
    config: EdgeConfig = CONFIG,
    first_ns: int | None = None,
) -> OutputRecorder:
    """Records ticks as the presenter's thread does, and returns the recorder at the end of its run.

    `first_ns`: the time at which the first output of the camera was ready.
    """
    presentation = Presentation(lambda: HoldPresenter(PresenterParts(CARD)), CARD, CONFIG)
    if first_ns is not None:
        presentation.first_ready_ns["/left"] = first_ns
    with PresentedLog(folder) as log:
        recorder = OutputRecorder(presentation, log, sinks, config, CARD)
        with recorder:
            for tick in ticks:
                for listener in presentation.listeners:
                    listener(tick)
    return recorder


def test_sinks_get_every_output_in_order_with_its_origin(tmp_path: Path) -> None:
    """A local result names its model; a frame without output comes with the reason."""
    sink = OutputSink()
    _record(tmp_path, [_tick(0, OutputOrigin.NONE), _tick(1), _tick(2, OutputOrigin.LOCAL, source_sequence=None)], sink)
    ((before, missing),) = sink.missing
    assert before == 0
    remote, local = sink.frames
    assert (missing.camera, missing.sequence, missing.stamp_ns, missing.reason) == ("/left", 0, 1, "too_old")
    assert (remote.origin, remote.age_ns, remote.source_sequence, remote.model) == (OutputOrigin.REMOTE, 5, 0, "")
    assert (local.origin, local.source_sequence, local.model) == (OutputOrigin.LOCAL, None, "small")
    assert sink.is_closed


def test_the_presenter_does_not_wait_for_slow_sinks(tmp_path: Path) -> None:
    """What does not fit into the queue is left out of the sinks and counted; the log has every tick."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: FrameResult) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)

    class Releasing(list[PresentedTick]):
        def __iter__(self) -> Any:
            for tick in super().__iter__():
                yield tick
                assert begun.wait(WAIT_S)  # From here on the sink works on the first output.
            go_on.set()

    sink, count = OutputSink(hold), backlog(CARD) + 11
    recorder = _record(tmp_path, Releasing(_tick(sequence) for sequence in range(count)), sink)
    assert sink.got == list(range(backlog(CARD) + 1))
    assert recorder.record()["outputs_not_written"] == 10
    assert len(list(read_presented(tmp_path))) == count
    assert any("10 outputs are missing in presented/" in line for line in recorder.lines())


def test_a_sink_that_fails_is_closed_and_the_others_go_on(tmp_path: Path) -> None:
    """The failure is reported at the end of the run."""

    def fail(_: FrameResult) -> None:
        raise SkylaneError("disk full")

    failing, other = OutputSink(fail), OutputSink()
    recorder = _record(tmp_path, [_tick(sequence) for sequence in range(3)], failing, other)
    assert failing.is_closed
    assert other.got == [0, 1, 2]
    assert [str(fault) for fault in recorder.faults] == ["disk full"]


def test_rows_that_a_full_disk_lost_are_reported(tmp_path: Path) -> None:
    """The run goes on, and its exit code shows that the log is not complete."""
    with disk_of(1000):
        recorder = _record(tmp_path, [_tick(sequence) for sequence in range(50)])
    lost = recorder.record()["rows_lost"]
    assert 0 < lost < 50
    assert [f"{lost} rows of presented.csv were not written: " in str(fault) for fault in recorder.faults] == [True]


def test_the_summary_says_what_outputs_were_made_of(tmp_path: Path) -> None:
    """The first look at a run must show how often the vehicle had nothing to act on."""
    ticks = [_tick(0, OutputOrigin.NONE), _tick(1), _tick(2), _tick(3, OutputOrigin.WARPED)]
    at = [10**9 * number for number in range(4)]
    after = (0, 500_000_000, 20_000_000, 30_000_000)
    timed = [
        replace(tick, due_ns=due, presented_ns=due + late) for tick, due, late in zip(ticks, at, after, strict=True)
    ]
    recorder = _record(tmp_path, timed, first_ns=at[1])
    assert list(recorder.lines()) == [
        "At the tick: 3 of 4 frames had an output that was ready when they were due",
        "For the tick: 3 of 4 frames got an output (2 remote, 1 warped), ready 30 ms after they were due (p50; p95 453 ms)",
        "1 of 4 frames got none (1 too_old)",
    ]


def test_a_run_without_outputs_says_nothing_of_their_time(tmp_path: Path) -> None:
    """No output was ready at any tick."""
    lines = list(_record(tmp_path, [_tick(0, OutputOrigin.NONE)]).lines())
    assert lines[0] == "At the tick: 0 of 1 frames had an output that was ready when they were due"
    assert lines[1] == "For the tick: 0 of 1 frames got an output"


def test_a_presenter_that_moved_nothing_says_so(tmp_path: Path) -> None:
    """Its outputs are those of holding; whoever asked for warping believes otherwise."""
    warp = CONFIG.model_copy(update={"present": "warp"})
    still = [_tick(0, OutputOrigin.NONE), _tick(1), _tick(2, OutputOrigin.LOCAL)]
    (tmp_path / "still").mkdir()
    (tmp_path / "moved").mkdir()
    (tmp_path / "none").mkdir()
    assert any(
        "--present warp moved no output" in line for line in _record(tmp_path / "still", still, config=warp).lines()
    )
    for name, ticks in (("moved", [*still, _tick(3, OutputOrigin.WARPED)]), ("none", [_tick(0, OutputOrigin.NONE)])):
        assert not any("moved no output" in line for line in _record(tmp_path / name, ticks, config=warp).lines())

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

import pytest

from edge.pacing.arrivals import Arrivals, poisson_ns
from edge.pacing.frame_queue import FrameQueue
from edge.pacing.replay import Pace, Pacer, ReadAhead, Schedule
from edge.reliability.ledger import FrameRecord, Ledger
from shared import clock
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, UnreadableFrame
from shared.runlog.latency_log import LogWriter, read_rows
from shared.stages import Stage

WAIT_S = 60.0
Make = Callable[..., Frame]


class Listed:
    """A source of given frames, which may end in an error."""

    provenance: dict[str, str | int | float | list[str]] = {"kind": "list"}  # noqa: RUF012 (the protocol's type)

    def __init__(self, frames: Sequence[Frame | UnreadableFrame], error: Exception | None = None) -> None:
        self._frames = frames
        self._error = error
        self.frame_count = len(frames)
        self.yielded = 0

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """See FrameSource."""
        for frame in self._frames:
            self.yielded += 1
            yield frame
        if self._error:
            raise self._error

    def close(self) -> None:
        """See FrameSource."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with a real log in `tmp_path`."""
    with LogWriter(tmp_path) as log:
        yield Ledger(log, vehicle="car", session="s1", model="tiny")


def _read(source: Listed, schedule: Schedule) -> list[Frame | UnreadableFrame]:
    ahead = ReadAhead(source, schedule, threading.Event())
    reader = threading.Thread(target=ahead.run)
    reader.start()
    read = list(ahead)
    reader.join(WAIT_S)
    assert not reader.is_alive()
    return read


def test_a_source_is_read_once_in_order(frame: Make) -> None:
    """Through a queue smaller than the source."""
    frames = [frame(i) for i in range(20)]
    assert _read(Listed(frames), Schedule(read_ahead=2)) == frames


def test_no_more_is_read_ahead_than_was_asked_for(frame: Make) -> None:
    """A bag of raw frames would fill the memory."""
    source, stop = Listed([frame(i) for i in range(100)]), threading.Event()
    ahead = ReadAhead(source, Schedule(read_ahead=4), stop)
    reader = threading.Thread(target=ahead.run)
    reader.start()
    next(iter(ahead))
    assert source.yielded <= 4 + 2
    stop.set()
    reader.join(WAIT_S)
    assert not reader.is_alive()


def test_a_loop_goes_on_in_index_and_time(frame: Make) -> None:
    """Masks of round two must not overwrite those of round one; a gap in time must be the source's own period."""
    source = Listed([frame(i, source_ns=1000 + 10 * i) for i in range(3)])
    read = _read(source, Schedule(loop=True, frames=8))
    assert [item.index for item in read] == list(range(8))
    assert {later.source_ns - earlier.source_ns for earlier, later in pairwise(read)} == {10}


def test_a_loop_over_one_frame_or_none_ends(frame: Make) -> None:
    """There is no period to go on with; an empty source would spin for ever."""
    assert len(_read(Listed([frame()]), Schedule(loop=True, frames=3))) == 3
    assert _read(Listed([]), Schedule(loop=True)) == []


def test_a_source_that_ends_in_an_error_gives_what_it_had(frame: Make) -> None:
    """A truncated bag is played as far as it goes; the error is told at the end."""
    ahead = ReadAhead(Listed([frame()], SkylaneError("truncated")), Schedule(), threading.Event())
    ahead.run()
    assert len(list(ahead)) == 1
    assert str(ahead.fault) == "truncated"


def _paced(
    source: Listed, ledger: Ledger, schedule: Schedule, stop: threading.Event | None = None
) -> list[FrameRecord]:
    """Every frame that a taker as quick as can be gets from a paced source."""
    stop = stop or threading.Event()
    slot = FrameQueue()
    ahead = ReadAhead(source, schedule, stop)
    pacer = Pacer(ahead, slot, ledger, schedule, stop)
    threads = [threading.Thread(target=body) for body in (ahead.run, pacer.run)]
    for thread in threads:
        thread.start()
    taken = []
    while (item := slot.take()) is not None:
        taken.append(item[0])
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return taken


def test_open_loop_frames_are_due_by_the_sources_own_times(ledger: Ledger, frame: Make, tmp_path: Path) -> None:
    """At twice the rate in half the time, whether anybody takes them or not; never before their time."""
    source = Listed([frame(i, source_ns=5 * 10**9 + i * 20_000_000) for i in range(5)])
    begun_ns = clock.now_ns()
    taken = _paced(source, ledger, Schedule(rate=2.0))
    due = [journey.times[Stage.DUE] for journey in taken]
    dropped = [row for row in read_rows(tmp_path) if row["reason"] == "window"]
    assert len(taken) + len(dropped) == 5
    every = sorted(due + [int(row["t_due_ns"]) for row in dropped])
    assert [later - earlier for earlier, later in pairwise(every)] == [10_000_000] * 4
    assert begun_ns <= every[0]
    assert every[-1] <= clock.now_ns()


def test_closed_loop_takes_every_frame(ledger: Ledger, frame: Make, tmp_path: Path) -> None:
    """Deterministic: nothing is dropped, however slow the far side."""
    taken = _paced(Listed([frame(i) for i in range(50)]), ledger, Schedule(pace=Pace.CLOSED_LOOP))
    assert [journey.frame_index for journey in taken] == list(range(50))
    assert not list(read_rows(tmp_path))


def test_uniform_arrivals_fall_due_on_their_own_schedule(ledger: Ledger, frame: Make, tmp_path: Path) -> None:
    """The source's times play no part, however long its gaps."""
    source = Listed([frame(i, source_ns=i * 10**12) for i in range(5)])
    taken = _paced(source, ledger, Schedule(arrivals=Arrivals.UNIFORM, arrival_rate_hz=200.0))
    due = sorted([*(journey.times[Stage.DUE] for journey in taken), *_due_of_dropped(tmp_path)])
    assert [later - earlier for earlier, later in pairwise(due)] == [5_000_000] * 4


def test_poisson_arrivals_fall_due_as_their_seed_says(ledger: Ledger, frame: Make, tmp_path: Path) -> None:
    """The intended times, settled before the run: nothing that happens in it moves them."""
    schedule = Schedule(arrivals=Arrivals.POISSON, arrival_rate_hz=500.0, seed=5)
    taken = _paced(Listed([frame(i) for i in range(20)]), ledger, schedule)
    due = sorted([*(journey.times[Stage.DUE] for journey in taken), *_due_of_dropped(tmp_path)])
    assert [at_ns - due[0] for at_ns in due] == list(islice(poisson_ns(500.0, 5), 20))


def test_lateness_moves_no_due_time(ledger: Ledger, frame: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that comes an hour late is an hour late in the log, and the next is due when it always was."""
    now_ns = [10**18]
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns[0])

    def late() -> Iterator[Frame]:
        for index in range(5):
            yield frame(index)
            now_ns[0] += 3600 * 10**9

    slot = FrameQueue(5)
    schedule = Schedule(arrivals=Arrivals.UNIFORM, arrival_rate_hz=1000.0)
    Pacer(late(), slot, ledger, schedule, threading.Event()).run()
    due = [journey.times[Stage.DUE] for journey in slot.drain()]
    assert due == [10**18 + index * 10**6 for index in range(5)]


def _due_of_dropped(folder: Path) -> list[int]:
    return [int(row["t_due_ns"]) for row in read_rows(folder)]


@pytest.mark.parametrize("read_ahead", [16, 2], ids=["read before", "longer than what is read ahead"])
def test_a_burst_is_due_together_and_the_next_when_all_of_it_has_ended(
    ledger: Ledger, frame: Make, tmp_path: Path, read_ahead: int
) -> None:
    """Its latency counts from that one instant; nothing of it is given up; a part of one ends the source."""
    stop, slot = threading.Event(), FrameQueue()
    schedule = Schedule(pace=Pace.CLOSED_LOOP, burst=4, read_ahead=read_ahead)
    frames: list[Frame | UnreadableFrame] = [frame(i) for i in range(10)]
    frames[5] = UnreadableFrame("/left", 5, 0, 0, 0, "broken picture")
    ahead = ReadAhead(Listed(frames), schedule, stop)
    pacer = Pacer(ahead, slot, ledger, schedule, stop)
    threads = [threading.Thread(target=body) for body in (ahead.run, pacer.run)]
    for thread in threads:
        thread.start()
    ended_ns = []
    held: list[FrameRecord] = []
    while (item := slot.take()) is not None:
        held.append(item[0])
        if item[0].frame_index in (3, 7, 9):  # The last of a burst: only now do its frames end.
            assert ledger.tally().read == item[0].frame_index + 1
            ended_ns.append(clock.now_ns())
            for journey in held:
                ledger.drop(journey, "ended")
            held.clear()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    rows = sorted(read_rows(tmp_path), key=lambda row: int(row["sequence"]))
    due = [int(row["t_due_ns"]) for row in rows]
    assert [len(set(due[:4])), len(set(due[4:8])), len(set(due[8:]))] == [1, 1, 1]
    assert due[0] < ended_ns[0] <= due[4] < ended_ns[1] <= due[8]
    assert [row["reason"] for row in rows] == ["ended"] * 5 + ["undecodable: broken picture"] + ["ended"] * 4


def test_unreadable_frames_are_dropped_with_their_reason(ledger: Ledger, frame: Make, tmp_path: Path) -> None:
    """They take no place and stop nothing."""
    broken = UnreadableFrame("/left", 1, 0, 0, 0, "broken picture")
    taken = _paced(Listed([frame(0), broken, frame(2)]), ledger, Schedule(pace=Pace.CLOSED_LOOP))
    assert [journey.frame_index for journey in taken] == [0, 2]
    assert [(row["outcome"], row["reason"]) for row in read_rows(tmp_path)] == [
        ("dropped", "undecodable: broken picture")
    ]


def test_a_camera_is_due_when_it_was_grabbed(ledger: Ledger, frame: Make) -> None:
    """Reading and decoding it are part of its latency."""
    (journey,) = _paced(Listed([frame(0, source_ns=12345)]), ledger, Schedule(pace=Pace.LIVE))
    assert journey.times[Stage.DUE] == 12345


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(),
        Schedule(arrivals=Arrivals.UNIFORM, arrival_rate_hz=1e-3),
        Schedule(pace=Pace.CLOSED_LOOP),
        Schedule(pace=Pace.CLOSED_LOOP, burst=2),
    ],
    ids=["source", "uniform", "window", "burst"],
)
def test_a_stop_ends_every_wait(ledger: Ledger, frame: Make, schedule: Schedule) -> None:
    """A gap of centuries in a damaged bag, or a window that never opens, must not hold Ctrl-C up."""
    stop = threading.Event()
    slot = FrameQueue()
    frames = [frame(0), frame(1, source_ns=1 << 62)]
    ahead = ReadAhead(Listed(frames), schedule, stop)
    pacer = Pacer(ahead, slot, ledger, schedule, stop)
    threads = [threading.Thread(target=body) for body in (ahead.run, pacer.run)]
    for thread in threads:
        thread.start()
    stop.set()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()

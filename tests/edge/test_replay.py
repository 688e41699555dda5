"""Replay of a source."""

import threading
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kstest

from edge.config import Arrivals, EdgeConfig
from edge.frame_record import FrameRecord
from edge.ledger import Ledger
from edge.pacing import FrameQueue, Pacer, ReadAhead, poisson_ns, uniform_ns
from shared import clock
from shared.imaging.frames import Frame, UnreadableFrame
from shared.runlog.latency_log import LogWriter, read_rows
from shared.stages import Stage
from tests.edge.samples import ListedSource, make_frame
from tests.support.waiting import beside


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Returns a ledger with its log in `tmp_path`."""
    with LogWriter(tmp_path) as log:
        yield Ledger(log, EdgeConfig(vehicle="car", model="tiny"), "s1")


def _read(source: ListedSource, settings: EdgeConfig) -> list[Frame | UnreadableFrame]:
    ahead = ReadAhead(source, settings, threading.Event())
    with beside(ahead.run):
        return list(ahead)


def test_a_source_is_read_once_in_order() -> None:
    """The queue is smaller than the source."""
    frames = [make_frame(i) for i in range(20)]
    assert _read(ListedSource(frames), EdgeConfig(read_ahead_queue_size=2)) == frames


def test_reading_ahead_is_bounded() -> None:
    """Otherwise a bag of raw frames would fill the memory."""
    source, stop = ListedSource([make_frame(i) for i in range(100)]), threading.Event()
    ahead = ReadAhead(source, EdgeConfig(read_ahead_queue_size=4), stop)
    with beside(ahead.run):
        next(iter(ahead))
        assert source.yielded <= 4 + 2
        stop.set()


def test_a_loop_continues_index_and_time() -> None:
    """Results of the second round must not overwrite those of the first; the gap between rounds is one period."""
    source = ListedSource([make_frame(i, source_ns=1000 + 10 * i) for i in range(3)])
    read = _read(source, EdgeConfig(loop=True, frames=8))
    assert [item.index for item in read] == list(range(8))
    assert {later.source_ns - earlier.source_ns for earlier, later in pairwise(read)} == {10}


def test_a_loop_over_at_most_one_frame_ends() -> None:
    """A single frame has no period, and an empty source must not loop without end."""
    assert len(_read(ListedSource([make_frame()]), EdgeConfig(loop=True, frames=3))) == 3
    assert _read(ListedSource([]), EdgeConfig(loop=True)) == []


def _paced(source: ListedSource, ledger: Ledger, config: EdgeConfig, *, is_live: bool = False) -> list[FrameRecord]:
    """Returns the frames that an immediate consumer gets from a paced source."""
    stop, due_frames = threading.Event(), FrameQueue()
    ahead = ReadAhead(source, config, stop)
    pacer = Pacer(ahead, due_frames, ledger, config, stop, is_live=is_live)
    taken = []
    with beside(ahead.run, pacer.run):
        while (item := due_frames.take()) is not None:
            taken.append(item[0])
    return taken


def test_open_loop_frames_are_due_at_the_times_of_the_source(ledger: Ledger, tmp_path: Path) -> None:
    """The rate scales the times; whether frames are taken has no effect."""
    source = ListedSource([make_frame(i, source_ns=5 * 10**9 + i * 20_000_000) for i in range(5)])
    started_ns = clock.now_ns()
    taken = _paced(source, ledger, EdgeConfig(rate=2.0))
    due = [record.times[Stage.DUE] for record in taken]
    dropped = [row for row in read_rows(tmp_path) if row["reason"] == "window"]
    assert len(taken) + len(dropped) == 5
    every = sorted(due + [int(row["t_due_ns"]) for row in dropped])
    assert [later - earlier for earlier, later in pairwise(every)] == [10_000_000] * 4
    assert started_ns <= every[0]
    assert every[-1] <= clock.now_ns()


def test_a_closed_loop_drops_no_frame(ledger: Ledger, tmp_path: Path) -> None:
    """This holds however slow the worker is."""
    taken = _paced(ListedSource([make_frame(i) for i in range(50)]), ledger, EdgeConfig(closed_loop=True))
    assert [record.row.frame_index for record in taken] == list(range(50))
    assert not list(read_rows(tmp_path))


@pytest.mark.parametrize(
    ("arrivals", "expected_ns"),
    [(Arrivals.UNIFORM, uniform_ns(500.0)), (Arrivals.POISSON, poisson_ns(500.0, 5))],
    ids=["uniform", "poisson"],
)
def test_scheduled_arrivals_ignore_the_times_of_the_source(
    ledger: Ledger, tmp_path: Path, arrivals: Arrivals, expected_ns: Iterator[int]
) -> None:
    """The due times are fixed before the run, and nothing in the run changes them."""
    source = ListedSource([make_frame(i, source_ns=i * 10**12) for i in range(20)])
    taken = _paced(source, ledger, EdgeConfig(arrivals=arrivals, arrival_rate_hz=500.0, seed=5))
    due = sorted([*(record.times[Stage.DUE] for record in taken), *_due_of_dropped(tmp_path)])
    assert [at_ns - due[0] for at_ns in due] == list(islice(expected_ns, 20))


def test_a_delay_does_not_change_due_times(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that is read an hour late is late in the log, and the next one keeps its due time."""
    now_ns = [10**18]
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns[0])

    def late() -> Iterator[Frame]:
        for index in range(5):
            yield make_frame(index)
            now_ns[0] += 3600 * 10**9

    due_frames = FrameQueue(5)
    settings = EdgeConfig(arrivals=Arrivals.UNIFORM, arrival_rate_hz=1000.0)
    Pacer(late(), due_frames, ledger, settings, threading.Event()).run()
    due = [record.times[Stage.DUE] for record in due_frames.drain()]
    assert due == [10**18 + index * 10**6 for index in range(5)]


def _due_of_dropped(folder: Path) -> list[int]:
    return [int(row["t_due_ns"]) for row in read_rows(folder)]


@pytest.mark.parametrize("read_ahead", [16, 2], ids=["read in advance", "longer than the read-ahead"])
def test_a_burst_is_due_at_once_when_all_frames_before_it_have_ended(
    ledger: Ledger, tmp_path: Path, read_ahead: int
) -> None:
    """No frame of a burst is dropped, and the last burst may be shorter."""
    stop, due_frames = threading.Event(), FrameQueue()
    settings = EdgeConfig(closed_loop=True, burst=4, read_ahead_queue_size=read_ahead)
    frames: list[Frame | UnreadableFrame] = [make_frame(i) for i in range(10)]
    frames[5] = UnreadableFrame("/left", 5, 0, 0, 0, "broken image")
    ahead = ReadAhead(ListedSource(frames), settings, stop)
    pacer = Pacer(ahead, due_frames, ledger, settings, stop)
    ended_ns = []
    held: list[FrameRecord] = []
    with beside(ahead.run, pacer.run):
        while (item := due_frames.take()) is not None:
            held.append(item[0])
            if item[0].row.frame_index in (3, 7, 9):  # The last frame of a burst: now its frames end.
                assert ledger.counts().read == item[0].row.frame_index + 1
                ended_ns.append(clock.now_ns())
                for record in held:
                    ledger.drop(record, "ended")
                held.clear()
    rows = sorted(read_rows(tmp_path), key=lambda row: int(row["sequence"]))
    due = [int(row["t_due_ns"]) for row in rows]
    assert [len(set(due[:4])), len(set(due[4:8])), len(set(due[8:]))] == [1, 1, 1]
    assert due[0] < ended_ns[0] <= due[4] < ended_ns[1] <= due[8]
    assert [row["reason"] for row in rows] == ["ended"] * 5 + ["undecodable: broken image"] + ["ended"] * 4


def test_a_camera_frame_is_due_when_it_was_grabbed(ledger: Ledger) -> None:
    """Reading and decoding are part of its latency."""
    (record,) = _paced(ListedSource([make_frame(0, source_ns=12345)]), ledger, EdgeConfig(), is_live=True)
    assert record.times[Stage.DUE] == 12345


@pytest.mark.parametrize(
    "settings",
    [
        EdgeConfig(),
        EdgeConfig(arrivals=Arrivals.UNIFORM, arrival_rate_hz=1e-3),
        EdgeConfig(closed_loop=True),
        EdgeConfig(closed_loop=True, burst=2),
    ],
    ids=["source", "uniform", "window", "burst"],
)
def test_a_stop_ends_every_wait(ledger: Ledger, settings: EdgeConfig) -> None:
    """Neither a gap of centuries in a damaged bag nor a full window may delay Ctrl-C."""
    stop = threading.Event()
    due_frames = FrameQueue()
    frames = [make_frame(0), make_frame(1, source_ns=1 << 62)]
    ahead = ReadAhead(ListedSource(frames), settings, stop)
    pacer = Pacer(ahead, due_frames, ledger, settings, stop)
    with beside(ahead.run, pacer.run):
        stop.set()


def test_uniform_arrivals_do_not_drift() -> None:
    """A third of a second is no whole number of nanoseconds: a sum of rounded gaps would drift."""
    due = list(islice(uniform_ns(3.0), 300_001))
    assert due[:4] == [0, 333_333_333, 666_666_667, 1_000_000_000]
    assert due[-1] == 10**14


def test_poisson_arrivals_have_independent_exponential_gaps() -> None:
    """More regular arrivals would cause shorter queues at the worker."""
    rate_hz = 20.0
    due_s = np.array(list(islice(poisson_ns(rate_hz, 7), 20_001))) / 1e9
    gaps_s = np.diff(due_s)
    assert due_s[0] == 0
    assert gaps_s.mean() == pytest.approx(1 / rate_hz, rel=0.03)
    assert kstest(gaps_s, "expon", args=(0, 1 / rate_hz)).pvalue > 0.01
    assert abs(np.corrcoef(gaps_s[:-1], gaps_s[1:])[0, 1]) < 0.03


def test_the_schedule_of_a_seed_is_stable_across_versions() -> None:
    """The seed in an old manifest must still give the due times of its frames."""
    assert list(islice(poisson_ns(10.0, 2026), 4)) == [0, 12_683_374, 82_502_513, 154_210_178]

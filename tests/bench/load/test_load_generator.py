from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from bench.load.load_generator import LoadGenerator, OfferedLoad
from bench.load.null_worker import MODEL, NullWorker, NullWorkerSettings
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import FrameMessage
from shared.messages.topics import FrameId
from shared.runlog.latency_log import Outcome

pytestmark = pytest.mark.mosquitto
HEIGHT, WIDTH = 16, 24
FRAME = FrameMessage(
    id=FrameId("nobody", "front", "s1", 0),
    model=MODEL,
    layout=Layout.RGB8,
    shape=(HEIGHT, WIDTH, 3),
    codec="raw",
    geometry=plan(Resize.CROP, HEIGHT, WIDTH, HEIGHT, WIDTH),
    frame_stamp_ns=0,
    data=bytes(np.zeros((HEIGHT, WIDTH, 3), np.uint8)),
)


@pytest.fixture(scope="module")
def worker(mosquitto_url: str) -> Iterator[None]:
    """A worker that answers at once."""
    with NullWorker(mosquitto_url, NullWorkerSettings(height=HEIGHT, width=WIDTH)):
        yield


@pytest.mark.usefixtures("worker")
def test_every_frame_that_was_due_is_accounted_for(mosquitto_url: str) -> None:
    """Each vehicle offers its own rate, under its own name, and hears what became of its own frames."""
    loads = [OfferedLoad("a", 50.0, 8), OfferedLoad("b", 20.0, 8), OfferedLoad("c", 0.0, 8)]
    tallies, (begun_ns, ended_ns) = LoadGenerator(
        mosquitto_url, [FRAME], loads, deadline_ms=60_000, duration_s=1.0
    ).run()
    assert ended_ns - begun_ns == 10**9
    assert [tally.name for tally in tallies] == ["a", "b", "c"]
    assert [tally.offered for tally in tallies] == [50, 20, 0]
    for tally in tallies:
        assert tally.outcomes.total() == tally.offered
        assert set(tally.outcomes) <= {Outcome.ANSWERED, Outcome.DROPPED}
        assert tally.outcomes[Outcome.ANSWERED] == len(tally.answered_ns) == len(tally.latencies_ms)
        assert all(at_ns > begun_ns for at_ns in tally.answered_ns)
    assert tallies[0].answered_ns


@pytest.mark.usefixtures("worker")
def test_what_comes_too_late_does_not_count(mosquitto_url: str) -> None:
    """Capacity that is spent on late answers is wasted, and a figure must show it."""
    load = OfferedLoad("a", 20.0, 8)
    (tally,), _span_ns = LoadGenerator(mosquitto_url, [FRAME], [load], deadline_ms=0, duration_s=0.5).run()
    assert (tally.answered_ns, tally.latencies_ms) == ((), ())
    assert tally.outcomes == {Outcome.EXPIRED: 10}


def test_what_nobody_takes_is_dropped(mosquitto_url: str) -> None:
    """The broker says so, and the window is given back its places."""
    frame = replace(FRAME, model="unserved")
    (tally,), _span_ns = LoadGenerator(
        mosquitto_url, [frame], [OfferedLoad("a", 20.0, 1)], deadline_ms=1000, duration_s=0.5
    ).run()
    assert tally.outcomes == {Outcome.DROPPED: 10}

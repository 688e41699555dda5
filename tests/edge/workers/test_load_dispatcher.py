"""The choice of a worker by load."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from edge.frame_record import GROUP, Assignment, FrameRecord
from edge.workers.load_dispatcher import LoadDispatcher
from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_directory import WorkerDirectory, WorkerWatch
from edge.workers.worker_stats import WorkerLoads, WorkerStats
from shared.clock import Exchange
from shared.messages.frame import Status
from shared.messages.load import LoadReport, WorkerLoad, pack_load
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import LOADS, WORKER_STATUS
from shared.mqtt.bus import Delivery
from shared.stages import Stage
from tests.edge.samples import CARD, make_answer, make_record, mark_sent

MS = 1_000_000
NOW_NS = 1000 * 1_000 * MS
IDLE = WorkerLoad(queue=0, free=10, wait_ms=0.0, answer_ms=100.0, spacing_ms=100.0)


class Dispatch:
    """A dispatcher and the workers that it knows."""

    def __init__(self, *, version: str | None = None) -> None:
        self.loads, self.clocks = WorkerLoads(CARD.name), WorkerClocks()
        self.workers = WorkerDirectory(CARD.name, version, self.loads)
        self.dispatcher = LoadDispatcher(WorkerWatch(self.workers, self.clocks, WorkerStats()), random.Random(7))
        self.in_flight: list[FrameRecord] = []

    def announce(self, name: str, state: NodeState = NodeState.ONLINE, session: str = "s9") -> None:
        """Processes the status of a worker."""
        status = NodeStatus(state, session, 4, (CARD,) if state is NodeState.ONLINE else ())
        self.workers.announced(Delivery(WORKER_STATUS.of(worker=name), pack_status(status), NOW_NS))

    def report(self, name: str, load: WorkerLoad, at_ns: int = NOW_NS, session: str = "s9") -> None:
        """Processes a load report of a worker."""
        packed = pack_load(LoadReport(session, {CARD.name: load}))
        self.workers.load_announced(Delivery(LOADS.of(worker=name), packed, at_ns))

    def add(self, name: str, *, wait_ms: float = 0.0, answer_ms: float = 100.0, queue: int = 0) -> None:
        """Adds a worker that has answered, and its load."""
        self.announce(name)
        self.loads.answered(name, NOW_NS)
        self.report(name, WorkerLoad(queue, 10, wait_ms, answer_ms, answer_ms))

    def send(self, name: str, ago_ms: float, expected_ms: float = 100.0) -> FrameRecord:
        """Adds a frame in flight."""
        record = mark_sent(make_record(len(self.in_flight), NOW_NS - round(ago_ms * MS) - 5000))
        record.times[Stage.SENT] = NOW_NS - round(ago_ms * MS)
        record.worker, record.expected_ns = name, round(expected_ms * MS)
        self.in_flight.append(record)
        return record

    def choose(self, after_ms: float = 0.0, excluded: Sequence[str] = ()) -> Assignment:
        """Chooses a worker."""
        return self.dispatcher.choose(self.in_flight, NOW_NS + round(after_ms * MS), excluded)

    def chosen(self, times: int = 200, after_ms: float = 0.0) -> Counter[str | None]:
        """Counts the workers of several choices."""
        return Counter(self.choose(after_ms).worker for _ in range(times))


@pytest.fixture
def dispatch() -> Dispatch:
    """A dispatcher that knows no worker."""
    return Dispatch()


def test_the_worker_with_the_shortest_expected_answer_is_chosen(dispatch: Dispatch) -> None:
    """A vehicle that is alone compares all workers: a wait counts as much as a slow inference."""
    dispatch.add("waiting", wait_ms=150.0)
    dispatch.add("slow", answer_ms=500.0)
    dispatch.add("free", answer_ms=120.0)
    assert dispatch.choose() == ("load", "free", 120 * MS)


def test_a_reported_wait_passes(dispatch: Dispatch) -> None:
    """A report is older than the choice."""
    dispatch.add("waiting", wait_ms=150.0)
    dispatch.add("slow", answer_ms=300.0)
    assert dispatch.choose(after_ms=50) == ("load", "waiting", 200 * MS)
    assert dispatch.choose(after_ms=200) == ("load", "waiting", 100 * MS)


def test_frames_sent_since_the_report_count(dispatch: Dispatch) -> None:
    """Each of them lengthens the wait; those sent before are in the report."""
    dispatch.add("fast", answer_ms=100.0)
    dispatch.add("slow", answer_ms=350.0)
    dispatch.send("fast", ago_ms=1)
    assert dispatch.choose() == ("load", "fast", 100 * MS)  # It was in the report.
    for _ in range(2):
        dispatch.send("fast", ago_ms=0)
    assert dispatch.choose() == ("load", "fast", 300 * MS)
    dispatch.send("fast", ago_ms=0)
    assert dispatch.choose() == ("load", "slow", 350 * MS)


def test_the_round_trip_counts(dispatch: Dispatch) -> None:
    """A worker in another city may answer later than a slower one next door."""
    for name, round_trip_ms in (("far", 300), ("near", 2)):
        exchange = Exchange(NOW_NS - round_trip_ms * MS, NOW_NS, NOW_NS, NOW_NS)
        dispatch.clocks.add_probe(f"cloud/{name}/s9", exchange)
    dispatch.add("far", answer_ms=50.0)
    dispatch.add("near", answer_ms=200.0)
    assert dispatch.choose() == ("load", "near", 202 * MS)


def test_a_frame_on_its_way_is_not_in_a_report_that_arrives_at_the_same_time(dispatch: Dispatch) -> None:
    """The report is half a round trip old, and the frame needs the other half."""
    for name in ("far", "slow"):
        dispatch.clocks.add_probe(f"cloud/{name}/s9", Exchange(NOW_NS - 40 * MS, NOW_NS, NOW_NS, NOW_NS))
    dispatch.add("far", answer_ms=100.0)
    dispatch.add("slow", answer_ms=400.0)
    dispatch.send("far", ago_ms=41)
    assert dispatch.choose().expected_ns == 140 * MS
    dispatch.send("far", ago_ms=30)
    assert dispatch.choose().expected_ns == (140 + 100 - 30) * MS


def test_of_two_drawn_workers_the_better_one_is_chosen_if_there_are_other_vehicles(dispatch: Dispatch) -> None:
    """If all vehicles chose the best of all workers, it would get all frames until its next report."""
    for name, answer_ms in (("a", 100.0), ("b", 200.0), ("c", 300.0)):
        dispatch.add(name, answer_ms=answer_ms)
    assert dispatch.chosen() == {"a": 200}
    dispatch.add("c", answer_ms=300.0, queue=1)  # A frame that this vehicle has not sent.
    assert dispatch.chosen(3000)["a"] == pytest.approx(2000, abs=200)
    assert dispatch.chosen(3000)["c"] == 0
    dispatch.add("c", answer_ms=300.0)
    assert dispatch.chosen(after_ms=2001) == {"a": 200}


def test_a_vehicle_recognises_its_own_frames_in_a_report(dispatch: Dispatch) -> None:
    """It is still alone."""
    dispatch.send("b", ago_ms=10)
    dispatch.add("a")
    dispatch.add("b", answer_ms=300.0, queue=1)
    dispatch.add("c", answer_ms=300.0)
    assert dispatch.chosen() == {"a": 200}


def test_the_broker_deals_frames_among_workers_that_are_about_even(dispatch: Dispatch) -> None:
    """It knows the frames of all vehicles; a worker that falls behind gets no frames in turn."""
    dispatch.add("a", answer_ms=100.0)
    dispatch.add("b", answer_ms=110.0, wait_ms=90.0)
    assert dispatch.choose() == ("group", None, 200 * MS)
    dispatch.add("b", answer_ms=110.0, wait_ms=300.0)
    assert dispatch.choose() == ("load", "a", 100 * MS)
    dispatch.add("b", answer_ms=160.0)
    assert dispatch.choose() == ("load", "a", 100 * MS)


def test_a_single_worker_gets_the_frames_of_the_group(dispatch: Dispatch) -> None:
    """There is nothing to choose, so no time is spent on it."""
    dispatch.add("a")
    assert dispatch.choose() == GROUP


def test_without_a_known_load_the_group_gets_the_frame(dispatch: Dispatch) -> None:
    """Workers of earlier releases report none."""
    assert dispatch.choose() == GROUP
    dispatch.announce("old")
    assert dispatch.choose() == GROUP


def test_a_worker_of_an_earlier_release_gets_its_share_from_the_group(dispatch: Dispatch) -> None:
    """A frame goes to the group whenever that worker is drawn."""
    dispatch.announce("old")
    dispatch.loads.answered("old", NOW_NS)
    dispatch.add("a", answer_ms=100.0)
    dispatch.add("b", answer_ms=500.0)
    chosen = dispatch.chosen(3000)
    assert chosen[None] == pytest.approx(2000, abs=200)
    assert chosen["a"] == 3000 - chosen[None]


def test_the_load_of_another_process_does_not_count(dispatch: Dispatch) -> None:
    """A restarted worker has an empty queue; a report with an unknown session may be a forgery."""
    dispatch.add("a")
    dispatch.report("a", IDLE, session="s8")
    dispatch.add("b", answer_ms=500.0)
    assert dispatch.choose().worker == "a"
    dispatch.announce("a", session="s10")
    assert dispatch.choose(excluded=("b",)) == GROUP
    assert dispatch.loads.ignored == {"other_session": 1}


@pytest.mark.parametrize("reason", ["stale", "full", "refused", "unreachable", "unresponsive"])
def test_a_worker_that_takes_no_frames_is_left_out(dispatch: Dispatch, reason: str) -> None:
    """Other workers are available, though they are slower."""
    dispatch.add("a")
    dispatch.add("b", answer_ms=500.0)
    dispatch.report("b", WorkerLoad(0, 10, 0.0, 500.0, 500.0), NOW_NS + 4000 * MS)
    after_ms = 10
    if reason == "stale":
        after_ms = 5000
    elif reason == "full":
        dispatch.report("a", WorkerLoad(10, 0, 0.0, 100.0, 100.0))
    elif reason == "refused":
        record = dispatch.send("a", ago_ms=1)
        message = make_answer(dispatch.in_flight.pop(), Status.FAILED, worker="a")
        dispatch.loads.replied(record, message, "s9", NOW_NS)
    elif reason == "unreachable":
        dispatch.loads.unreachable("a", NOW_NS)
    else:
        for name, ago_ms in (("a", 1600), ("b", 0)):
            at_ns = NOW_NS - ago_ms * MS
            dispatch.clocks.add_probe(f"cloud/{name}/s9", Exchange(at_ns, at_ns, at_ns, at_ns))
    assert dispatch.choose(after_ms).worker == "b"
    assert dispatch.choose(after_ms, excluded=("b",)).worker == (
        "a" if reason in ("full", "refused", "unreachable") else None
    )
    if reason in ("refused", "unreachable"):
        assert dispatch.choose(1000).worker == "a"


def test_own_frames_use_up_the_free_places(dispatch: Dispatch) -> None:
    """The report does not count them yet."""
    dispatch.add("b", answer_ms=900.0)
    dispatch.add("a")
    dispatch.report("a", WorkerLoad(8, 2, 0.0, 100.0, 100.0))
    dispatch.send("a", ago_ms=0)
    assert dispatch.choose().worker == "a"
    dispatch.send("a", ago_ms=0)
    assert dispatch.choose().worker == "b"


def test_a_worker_that_keeps_a_frame_becomes_less_attractive(dispatch: Dispatch) -> None:
    """It hangs or reports too little, and its reports do not show it."""
    dispatch.add("a")
    dispatch.add("b", answer_ms=250.0)
    dispatch.send("a", ago_ms=200, expected_ms=100.0)
    assert dispatch.choose().worker == "a"
    assert dispatch.choose(after_ms=200).worker == "b"


def test_late_answers_are_remembered_for_a_while(dispatch: Dispatch) -> None:
    """A worker that claims to be idle is tried again, in case that it was a coincidence."""
    dispatch.add("a")
    dispatch.add("b", answer_ms=250.0)
    record = dispatch.send("a", ago_ms=1100, expected_ms=100.0)
    message = make_answer(dispatch.in_flight.pop(), worker="a", load=IDLE)
    dispatch.loads.replied(record, message, "s9", NOW_NS)
    assert dispatch.choose().worker == "b"  # The answer was 890 ms late: a quarter of that is added to 100 ms.
    assert dispatch.choose(after_ms=2000).worker == "a"


def test_only_workers_of_the_requested_version_are_chosen() -> None:
    """`--model-version` holds for the whole run."""
    dispatch = Dispatch(version="7")
    dispatch.add("a")
    assert dispatch.choose() == GROUP


def test_excluded_workers_get_no_frame(dispatch: Dispatch) -> None:
    """A retry goes to another worker than the one that has the frame."""
    dispatch.add("a")
    dispatch.add("b")
    assert dispatch.choose(excluded=("a",)) == ("load", "b", 100 * MS)
    assert dispatch.choose(excluded=("a", "b")) == GROUP


def test_a_worker_without_an_answer_yet_gets_one_frame_at_a_time(dispatch: Dispatch) -> None:
    """It claims to be idle, but a stuck engine or an attacker does so too; and no frame goes to a group with it."""
    dispatch.add("honest", answer_ms=100.0)
    dispatch.announce("ghost")
    dispatch.report("ghost", WorkerLoad(0, 64, 0.0, 0.1, 0.1))
    assert dispatch.choose().worker == "ghost"
    frame = dispatch.send("ghost", ago_ms=0, expected_ms=0.1)
    assert dispatch.chosen() == {"honest": 200}
    dispatch.in_flight.remove(frame)
    dispatch.loads.answered("ghost", NOW_NS)
    dispatch.send("ghost", ago_ms=0, expected_ms=0.1)
    assert dispatch.chosen() == {"ghost": 200}


def test_a_silent_worker_is_tried_again_after_ever_longer_waits(dispatch: Dispatch) -> None:
    """Each try may cost a frame; a new session, which any client can invent, does not shorten the wait."""
    waits_s = []
    now_ms = 0.0
    for silence in range(8):
        session = f"s{10 + silence}"
        while True:
            dispatch.announce("ghost", session=session)
            dispatch.announce("honest")
            at_ns = NOW_NS + round(now_ms * MS)
            dispatch.report("ghost", WorkerLoad(0, 64, 0.0, 0.1, 0.1), at_ns, session)
            dispatch.report("honest", WorkerLoad(0, 64, 0.0, 400.0, 400.0), at_ns)
            dispatch.loads.answered("honest", at_ns)
            if dispatch.choose(now_ms).worker == "ghost":
                break
            now_ms += 500.0
        waits_s.append(now_ms / 1000)
        record = dispatch.send("ghost", ago_ms=-now_ms, expected_ms=0.1)
        dispatch.in_flight.clear()
        dispatch.loads.unanswered(record, NOW_NS + round(now_ms * MS) + 10)
    tries_after_s = [later - earlier for earlier, later in pairwise(waits_s)]
    assert tries_after_s == pytest.approx([2, 4, 8, 16, 32, 64, 64], abs=1.0)


def test_a_frame_that_a_worker_kept_goes_to_one_that_answers(dispatch: Dispatch) -> None:
    """A frame is sent only twice, so the second attempt must not be another worker's trial."""
    dispatch.add("honest", answer_ms=500.0)
    for name in ("ghost", "other"):
        dispatch.announce(name)
        dispatch.report(name, WorkerLoad(0, 64, 0.0, 0.1, 0.1))
    assert {dispatch.choose(excluded=("ghost",)).worker for _ in range(100)} == {"honest"}


def test_a_worker_that_reports_no_load_is_tried_by_name(dispatch: Dispatch) -> None:
    """It gets a share of the frames of the group only when it has answered."""
    dispatch.add("a")
    dispatch.announce("old")
    chosen = dispatch.chosen(1000)
    assert chosen["old"] == pytest.approx(500, abs=100)
    assert chosen["a"] == 1000 - chosen["old"]
    dispatch.send("old", ago_ms=0)
    assert dispatch.chosen() == {"a": 200}

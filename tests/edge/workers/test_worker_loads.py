"""Load reports of workers, honest and hostile."""

from msgspec.structs import replace

from edge.workers.worker_stats import WorkerLoads
from shared.messages.frame import Status
from shared.messages.load import LoadReport, WorkerLoad, pack_load
from shared.messages.topics import LOADS
from shared.mqtt.bus import Delivery
from tests.edge.samples import CARD, make_answer, make_record, mark_sent

MS, SECOND = 1_000_000, 1_000_000_000
NOW_NS = 1000 * SECOND
LOAD = WorkerLoad(queue=3, free=5, wait_ms=200.0, answer_ms=100.0, spacing_ms=90.0)


def delivery(load: WorkerLoad = LOAD, at_ns: int = NOW_NS, *, session: str = "s9", retained: bool = False) -> Delivery:
    """Makes a load report as it arrives."""
    packed = pack_load(LoadReport(session, {CARD.name: load, "other": replace(load, queue=9)}))
    return Delivery(LOADS.of(worker="w"), packed, at_ns, retained=retained)


def test_the_latest_report_counts() -> None:
    """A reply waits for its turn to be decoded, so an older report may come later."""
    loads = WorkerLoads(CARD.name)
    loads.announced("w", "s9", delivery())
    record = mark_sent(make_record(due_ns=NOW_NS - 200 * MS))
    older = make_answer(record, load=replace(LOAD, queue=1))
    loads.replied(record, older, "s9", NOW_NS - 1)
    assert loads.known()["w"].load == LOAD
    newer = make_answer(record, load=replace(LOAD, queue=2))
    loads.replied(record, newer, "s9", NOW_NS + 1)
    known = loads.known()["w"]
    assert (known.load.queue, known.at_ns, known.session) == (2, NOW_NS + 1, "s9")


def test_refusals_report_a_load_too() -> None:
    """An overloaded worker gets no frames for a second, whatever its load says."""
    loads = WorkerLoads(CARD.name)
    record = mark_sent(make_record(due_ns=NOW_NS))
    loads.replied(record, make_answer(record, Status.OVERLOADED, load=LOAD), "s9", NOW_NS)
    assert (loads.known()["w"].load, loads.known()["w"].refused_ns) == (LOAD, NOW_NS)
    loads.replied(record, make_answer(record, Status.EXPIRED), "s9", NOW_NS + 1)
    assert loads.known()["w"].refused_ns == NOW_NS  # The deadline was short; the worker may have done its best.


def test_a_reply_without_a_session_reports_no_load() -> None:
    """The refusal of an unreadable frame has no stamps of its process."""
    loads = WorkerLoads(CARD.name)
    record = mark_sent(make_record(due_ns=NOW_NS))
    loads.replied(record, make_answer(record, load=LOAD), "", NOW_NS)
    assert not loads.known()["w"].session


def test_a_new_process_has_no_history() -> None:
    """The worker was restarted because it was slow."""
    loads = WorkerLoads(CARD.name)
    loads.announced("w", "s9", delivery())
    loads.unreachable("w", NOW_NS)
    loads.announced("w", "s10", delivery(session="s10"))
    assert (loads.known()["w"].session, loads.known()["w"].refused_ns) == ("s10", 0)


def test_lateness_is_smoothed_and_decays() -> None:
    """A single late answer may be a coincidence; frames that are given up count in full."""
    loads = WorkerLoads(CARD.name)
    record = mark_sent(make_record(due_ns=NOW_NS))
    record.worker, record.expected_ns = "w", 100 * MS
    sent_ns = record.sent_ns
    loads.replied(record, make_answer(record), "s9", sent_ns + 610 * MS)
    known = loads.known()["w"]
    assert known.lateness_ns(known.late_at_ns) == 100 * MS  # A quarter of 610 - 2 × 100 - 10.
    assert known.lateness_ns(known.late_at_ns + 2 * SECOND) == 50 * MS
    loads.unanswered(record, sent_ns + 1210 * MS)
    known = loads.known()["w"]
    assert known.lateness_ns(known.late_at_ns) == 1000 * MS
    for _ in range(5):
        loads.replied(record, make_answer(record), "s9", sent_ns + 100 * MS)
    known = loads.known()["w"]
    assert known.lateness_ns(known.late_at_ns) < 500 * MS


def test_reports_of_others_are_ignored_and_counted() -> None:
    """The session is that of the worker's status; a name without a status is not stored."""
    loads = WorkerLoads(CARD.name)
    loads.announced("w", "s9", delivery(session="s8"))
    loads.announced("w", None, delivery())
    loads.announced("w", "s9", Delivery(LOADS.of(worker="w"), b"\x80", NOW_NS))
    assert not loads.known()
    assert loads.ignored == {"other_session": 1, "unknown_worker": 1, "unreadable": 1}


def test_what_a_broker_retains_of_dead_workers_is_no_mistake() -> None:
    """A killed worker leaves its last report behind, one that signs off an empty one."""
    loads = WorkerLoads(CARD.name)
    loads.announced("w", None, delivery(retained=True))
    loads.announced("w", "s9", Delivery(LOADS.of(worker="w"), b"", NOW_NS))
    assert not loads.known()
    assert not loads.ignored


def test_a_flood_of_reports_is_not_read() -> None:
    """Reading them would keep the network thread from the frames; honest workers send two in a second."""
    loads = WorkerLoads(CARD.name)
    for number in range(1000):
        loads.announced("w", "s9", delivery(replace(LOAD, queue=number), NOW_NS + number))
    assert loads.known()["w"].load.queue == 9
    assert loads.ignored == {"too_many": 990}
    loads.announced("w", "s9", delivery(at_ns=NOW_NS + SECOND))
    assert loads.known()["w"].load == LOAD


def test_the_number_of_workers_is_bounded() -> None:
    """Names of containers change with each start."""
    loads = WorkerLoads(CARD.name)
    for number in range(300):
        loads.announced(f"w{number}", "s9", delivery(at_ns=NOW_NS + number * SECOND))
    assert len(loads.known()) == 256
    assert "w299" in loads.known()


def test_a_report_without_the_model_says_nothing() -> None:
    """The worker serves other models, or has just unloaded this one."""
    loads = WorkerLoads("absent")
    loads.announced("w", "s9", delivery())
    assert not loads.known()
    assert not loads.ignored

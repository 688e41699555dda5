import gc
import threading
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.statistics.samples import jain
from cloud.serving.admission import Admission
from cloud.serving.request import Refusal, Request
from shared.clock import Deadline
from shared.messages.frame import FrameHeader, Status
from tests.support.cloud_requests import make_request

WAIT_S = 60.0


def _request(
    size: int = 10, vehicle: str = "car", camera: str = "left", due_ns: int | None = None, budget_ms: int | None = None
) -> Request:
    header = FrameHeader(due_ns=due_ns, deadline=Deadline.after_ms(budget_ms))
    return make_request(payload=bytes(size), vehicle=vehicle, camera=camera, header=header)


def _take(admission: Admission) -> Request:
    taken = admission.take(lambda request: request)
    assert taken is not None
    return taken[0]


def _drain(admission: Admission) -> list[Request]:
    admission.close()
    taken = []
    while (found := admission.take(lambda request: request)) is not None:
        taken.append(found[0])
    return taken


def _grown_bytes(action: Callable[[], None]) -> int:
    """Returns how many bytes remain allocated after an action."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        action()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before


def test_vehicles_take_turns() -> None:
    """A vehicle with many frames gets no more turns than one with few."""
    admission = Admission()
    for vehicle in ("a", "a", "a", "a", "b", "b", "c"):
        admission.offer(_request(vehicle=vehicle))
    assert [request.vehicle for request in _drain(admission)] == ["a", "b", "c", "a", "b", "a", "a"]


def test_a_vehicle_whose_frame_expired_keeps_its_turn() -> None:
    """Otherwise the last vehicles of a long round would expire in every round, and others be served twice."""
    admission = Admission()
    for vehicle in ("a", "b"):
        admission.offer(_request(vehicle=vehicle))
    assert [_take(admission).vehicle for _ in range(2)] == ["a", "b"]
    admission.offer(_request(vehicle="a"))
    taken = admission.take(lambda _: Refusal(Status.EXPIRED, "passed over"))
    assert taken is not None
    for vehicle in ("new", "b", "a"):
        admission.offer(_request(vehicle=vehicle))
    assert [request.vehicle for request in _drain(admission)] == ["a", "b", "new"]


def test_turns_of_idle_vehicles_are_forgotten() -> None:
    """Invented vehicle names must not fill the memory, nor take the turn of a waiting vehicle."""
    admission = Admission(max_frames=2)
    admission.offer(_request(vehicle="first"))

    def serve(count: int, prefix: str) -> None:
        for number in range(count):
            admission.offer(_request(vehicle=f"{prefix}-{number}"))
            admission.take(lambda request: None if request.vehicle == "first" else request)

    serve(100, "early")
    assert _grown_bytes(lambda: serve(2000, "late")) < 50_000
    assert [request.vehicle for request in _drain(admission)] == ["first"]


def test_cameras_of_a_vehicle_are_ordered_by_due_time() -> None:
    """A retry keeps its due time and comes before newer frames; a frame without a due time is last."""
    admission = Admission()
    for camera, due_ns in (("left", 30), ("right", 10), ("left", 5), ("top", None), ("right", 40)):
        admission.offer(_request(camera=camera, due_ns=due_ns))
    found = [(request.camera, request.header.due_ns) for request in _drain(admission)]
    assert found == [("right", 10), ("left", 30), ("left", 5), ("right", 40), ("top", None)]


def test_frames_beyond_the_limit_are_refused_at_once() -> None:
    """The network thread must not wait, and overload must not fill the memory."""
    admission = Admission(max_frames=2)
    assert not admission.offer(_request())
    assert not admission.offer(_request())
    refused = _request()
    assert admission.offer(refused) == [refused]
    _take(admission)
    assert not admission.offer(_request())


def test_a_full_queue_drops_a_frame_of_the_vehicle_with_the_most() -> None:
    """No vehicle can fill the queue for others."""
    admission = Admission(max_frames=4)
    greedy = [_request(vehicle="greedy") for _ in range(4)]
    for request in greedy:
        admission.offer(request)
    assert admission.offer(_request(vehicle="a")) == [greedy[3]]
    assert admission.offer(_request(vehicle="b")) == [greedy[2]]
    newcomer = _request(vehicle="a")
    assert admission.offer(newcomer) == [newcomer], "dropping a frame would only exchange two frames"
    assert admission.depth == 4


def test_bytes_beyond_the_limit_are_refused() -> None:
    """A few large frames fill the memory like many small ones; freed space can be used again."""
    admission = Admission(max_frames=100, max_bytes=100)
    assert not admission.offer(_request(60))
    assert admission.offer(_request(60))
    assert not admission.offer(_request(40))
    _take(admission)
    assert not admission.offer(_request(60))
    assert admission.offer(_request(1))


def test_space_is_freed_by_dropping_the_newest_frames_of_one_vehicle() -> None:
    """The queue drops as many frames as needed, and no frame if that would not be fair."""
    admission = Admission(max_frames=100, max_bytes=100)
    greedy = [_request(10, vehicle="greedy") for _ in range(10)]
    for request in greedy:
        admission.offer(request)
    assert admission.offer(_request(25, vehicle="a")) == [greedy[9], greedy[8], greedy[7]]
    for too_much in (_request(60, vehicle="b"), _request(36, vehicle="b")):
        assert admission.offer(too_much) == [too_much]
    assert [request.vehicle for request in _drain(admission)] == ["greedy", "a", *["greedy"] * 6]
    admission, large = Admission(max_bytes=100), [_request(50, vehicle="greedy") for _ in range(2)]
    for request in large:
        admission.offer(request)
    assert admission.offer(_request(50, vehicle="a")) == [large[1]], "both vehicles then have as much"


def test_bytes_are_freed_although_the_payload_was_cleared() -> None:
    """The decoder clears the payload of a frame that it takes."""
    admission = Admission(max_bytes=100)
    for _ in range(50):
        assert not admission.offer(_request(90))
        _take(admission).payload = b""


def test_expired_frames_are_taken_and_dropped_first() -> None:
    """They need no inference, but use memory while they wait."""
    admission = Admission(max_frames=2)
    live, expired = _request(vehicle="a"), _request(vehicle="b", budget_ms=0)
    admission.offer(live)
    admission.offer(expired)
    newest = _request(vehicle="a")
    assert admission.offer(newest) == [expired]
    admission.take(lambda request: request)
    expired = _request(vehicle="b", budget_ms=0)
    admission.offer(expired)
    assert _drain(admission) == [expired, newest]


def test_a_frame_that_is_not_chosen_keeps_its_turn() -> None:
    """Frames of other models pass while one engine is busy; a refusal does not count as a turn."""
    admission = Admission()
    for vehicle in ("a", "b", "c"):
        admission.offer(_request(vehicle=vehicle))
        admission.offer(_request(vehicle=vehicle))
    taken = admission.take(lambda request: "work" if request.vehicle != "a" else None)
    assert taken is not None
    assert taken[0].vehicle == "b"
    assert admission.take(lambda _: Refusal(Status.EXPIRED, "")) is not None
    assert [request.vehicle for request in _drain(admission)] == ["a", "c", "b", "c"]


def test_far_deadlines_of_taken_frames_are_forgotten() -> None:
    """Otherwise the heap of deadlines would grow with every frame."""
    admission = Admission(max_frames=4)

    def serve(count: int) -> None:
        for _ in range(count):
            admission.offer(_request(budget_ms=80_000_000))
            _take(admission)

    serve(100)
    assert _grown_bytes(lambda: serve(2000)) < 50_000


def test_a_closed_queue_accepts_no_frames_but_can_be_emptied() -> None:
    """A stopping worker still serves the frames that it has admitted."""
    admission = Admission()
    request = _request()
    admission.offer(request)
    admission.close()
    assert admission.offer(_request())
    assert admission.take(lambda found: found) == (request, request)
    assert admission.take(lambda found: found) is None


def test_closing_wakes_all_waiting_threads() -> None:
    """Otherwise a worker with several decoders would never end."""
    admission = Admission()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(admission.take(lambda _: "x"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    admission.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert found == [None, None, None]


def test_a_free_slot_and_a_deadline_wake_a_waiting_thread() -> None:
    """A frame that has expired needs no slot."""
    admission = Admission()
    has_room = threading.Event()
    was_called = threading.Event()
    found: list[Request] = []

    def choose(request: Request) -> str | None:
        was_called.set()
        return "work" if has_room.is_set() or request.deadline.is_expired() else None

    def take() -> None:
        while (taken := admission.take(choose)) is not None:
            found.append(taken[0])

    thread = threading.Thread(target=take)
    thread.start()
    without_deadline, urgent = _request(), _request(camera="right", budget_ms=50)
    admission.offer(without_deadline)
    admission.offer(urgent)
    assert was_called.wait(WAIT_S)
    admission.close()
    while not found:  # The deadline passes.
        thread.join(0.01)
    has_room.set()
    admission.wake()
    thread.join(WAIT_S)
    assert found == [urgent, without_deadline]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("lr"), st.integers(1, 40), st.booleans()), max_size=120),
    st.integers(1, 8),
    st.integers(1, 100),
)
def test_no_frame_is_lost_and_no_limit_exceeded_and_order_is_kept(
    events: list[tuple[str, str, int, bool]], max_frames: int, max_bytes: int
) -> None:
    """Each frame is taken, refused or dropped exactly once."""
    admission = Admission(max_frames, max_bytes)
    offered: list[Request] = []
    taken: list[Request] = []
    refused: list[Request] = []
    for vehicle, camera, size, takes in events:
        request = _request(size, vehicle, camera, due_ns=size)
        offered.append(request)
        refused += admission.offer(request)
        assert admission.depth <= max_frames
        done = {id(other) for other in (*taken, *refused)}
        assert sum(len(other.payload) for other in offered if id(other) not in done) <= max_bytes
        if takes and admission.depth:
            taken.append(_take(admission))
    taken += _drain(admission)
    assert Counter(map(id, taken + refused)) == Counter(map(id, offered))
    place = {id(request): number for number, request in enumerate(offered)}
    for key in {(request.vehicle, request.camera) for request in taken}:
        order = [place[id(request)] for request in taken if (request.vehicle, request.camera) == key]
        assert order == sorted(order)
    assert admission.depth == 0


@settings(max_examples=20)
@given(st.integers(2, 8), st.integers(8, 64), st.randoms(use_true_random=False))
def test_a_vehicle_that_offers_ten_times_as_much_gets_no_more(vehicles: int, max_frames: int, random: Random) -> None:
    """Vehicles that always have a waiting frame get equal shares."""
    admission = Admission(max_frames)
    names = [f"v{number}" for number in range(vehicles)]
    taken: Counter[str] = Counter()
    for _ in range(20):
        arrivals = [*names, *["v0"] * 10]
        random.shuffle(arrivals)
        for name in arrivals:
            admission.offer(_request(vehicle=name))
        for _ in range(vehicles):
            taken[_take(admission).vehicle] += 1
    assert max(taken.values()) - min(taken[name] for name in names) <= 1
    assert jain([taken[name] for name in names]) > 0.99


def test_many_threads_offer_and_take_and_nothing_is_lost() -> None:
    """The network thread offers frames while decoders take them and engines wake the decoders."""
    admission = Admission(max_frames=8)
    taken: deque[Request] = deque()
    refused: deque[Request] = deque()
    offered = [[_request(vehicle=f"v{number}") for _ in range(300)] for number in range(4)]

    def offer(requests: list[Request]) -> None:
        for request in requests:
            refused.extend(admission.offer(request))
            admission.wake()

    def take() -> None:
        while (found := admission.take(lambda _: "work")) is not None:
            taken.append(found[0])

    offering = [threading.Thread(target=offer, args=(requests,)) for requests in offered]
    taking = [threading.Thread(target=take) for _ in range(3)]
    for thread in offering + taking:
        thread.start()
    for thread in offering:
        thread.join(WAIT_S)
    admission.close()
    for thread in taking:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert Counter(map(id, [*taken, *refused])) == Counter(id(request) for part in offered for request in part)

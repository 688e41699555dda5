import threading
from collections import Counter, deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.fairness import jain
from cloud.serving.admission import Admission
from cloud.serving.request import Refusal, Request
from shared import clock
from shared.messages.frame import ResultMessage, Status
from shared.messages.frame_header import FrameHeader
from shared.stages import Stage

WAIT_S = 60.0


def _request(
    size: int = 10, vehicle: str = "car", camera: str = "left", due_ns: int | None = None, budget_ms: int | None = None
) -> Request:
    def answer(message: ResultMessage) -> None:
        raise AssertionError(message)

    return Request(
        bytes(size),
        vehicle,
        camera,
        "tiny",
        answer,
        {Stage.RECEIVED: clock.now_ns()},
        max_reply_bytes=1,
        head=FrameHeader(due_ns=due_ns, budget_ms=budget_ms),
    )


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


def test_frames_of_a_camera_come_out_as_they_came_in() -> None:
    """Even where their stamps say otherwise: a camera's frames never overtake each other."""
    admission = Admission()
    requests = [_request(due_ns=due_ns) for due_ns in (5, 4, 3, 2, 1)]
    assert not any(admission.offer(request) for request in requests)
    assert admission.depth == 5
    assert _drain(admission) == requests


def test_vehicles_take_turns() -> None:
    """However many frames one of them has."""
    admission = Admission()
    for vehicle in ("a", "a", "a", "a", "b", "b", "c"):
        admission.offer(_request(vehicle=vehicle))
    assert [request.vehicle for request in _drain(admission)] == ["a", "b", "c", "a", "b", "a", "a"]


def test_a_vehicle_whose_frame_expired_keeps_its_turn() -> None:
    """Where a round takes longer than a budget, those at its end would expire for ever, and others be served twice."""
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


def test_vehicles_without_end_are_forgotten() -> None:
    """Whoever makes up names must not fill the memory with them, nor take a turn from who waits."""
    admission = Admission(max_frames=2)
    admission.offer(_request(vehicle="first"))
    for number in range(100):
        admission.offer(_request(vehicle=f"car-{number}"))
        admission.take(lambda request: None if request.vehicle == "first" else request)
    assert len(admission._turns) <= 13
    assert [request.vehicle for request in _drain(admission)] == ["first"]


def test_within_a_vehicle_the_camera_whose_first_frame_is_due_first_is_next() -> None:
    """A second attempt keeps its due time, so it comes before what is newer; who tells none comes last."""
    admission = Admission()
    for camera, due_ns in (("left", 30), ("right", 10), ("left", 5), ("top", None), ("right", 40)):
        admission.offer(_request(camera=camera, due_ns=due_ns))
    found = [(request.camera, request.head.due_ns) for request in _drain(admission)]
    assert found == [("right", 10), ("left", 30), ("left", 5), ("right", 40), ("top", None)]


def test_more_frames_than_allowed_are_refused_at_once() -> None:
    """The network thread must never wait, and overload must cost an answer and not the memory."""
    admission = Admission(max_frames=2)
    assert not admission.offer(_request())
    assert not admission.offer(_request())
    refused = _request()
    assert admission.offer(refused) == [refused]
    _take(admission)
    assert not admission.offer(_request())


def test_a_full_queue_has_room_for_whoever_holds_less() -> None:
    """The newest frame of the vehicle that holds the most goes: nobody can fill the queue for others."""
    admission = Admission(max_frames=4)
    greedy = [_request(vehicle="greedy") for _ in range(4)]
    for request in greedy:
        admission.offer(request)
    assert admission.offer(_request(vehicle="a")) == [greedy[3]]
    assert admission.offer(_request(vehicle="b")) == [greedy[2]]
    newcomer = _request(vehicle="a")
    assert admission.offer(newcomer) == [newcomer], "the two would only change places"
    assert admission.depth == 4


def test_more_bytes_than_allowed_are_refused() -> None:
    """Few large frames fill a memory as well as many small ones; room that is given back can be taken again."""
    admission = Admission(max_frames=100, max_bytes=100)
    assert not admission.offer(_request(60))
    assert admission.offer(_request(60))
    assert not admission.offer(_request(40))
    _take(admission)
    assert not admission.offer(_request(60))
    assert admission.offer(_request(1))


def test_bytes_are_shared_as_places_are() -> None:
    """As many of a hoarder's newest frames go as one of another vehicle needs, or none."""
    admission = Admission(max_frames=100, max_bytes=100)
    hoard = [_request(10, vehicle="hoarder") for _ in range(10)]
    for request in hoard:
        admission.offer(request)
    assert admission.offer(_request(25, vehicle="a")) == [hoard[9], hoard[8], hoard[7]]
    too_much = _request(60, vehicle="b")
    assert admission.offer(too_much) == [too_much]
    assert [request.vehicle for request in _drain(admission)] == ["hoarder", "a", *["hoarder"] * 6]


def test_bytes_are_counted_even_where_the_payload_is_let_go() -> None:
    """Whoever takes a frame empties it; the room must be given back all the same."""
    admission = Admission(max_bytes=100)
    for _ in range(50):
        assert not admission.offer(_request(90))
        _take(admission).payload = b""


def test_expired_frames_are_handed_out_first_and_make_room_first() -> None:
    """They cost an answer only; waiting for their turn would cost memory, and others their place."""
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


def test_a_frame_that_cannot_be_worked_on_yet_keeps_its_turn() -> None:
    """While one model's engine is behind, frames of other models pass; a refusal costs nobody a turn."""
    admission = Admission()
    for vehicle in ("a", "b", "c"):
        admission.offer(_request(vehicle=vehicle))
        admission.offer(_request(vehicle=vehicle))
    taken = admission.take(lambda request: "work" if request.vehicle != "a" else None)
    assert taken is not None
    assert taken[0].vehicle == "b"
    assert admission.take(lambda _: Refusal(Status.EXPIRED, "")) is not None
    assert [request.vehicle for request in _drain(admission)] == ["a", "c", "b", "c"]


def test_a_budget_of_hours_keeps_nothing_that_has_left() -> None:
    """The heap of endings would otherwise grow with every frame of a day."""
    admission = Admission(max_frames=4)
    for _ in range(1000):
        admission.offer(_request(budget_ms=80_000_000))
        _take(admission)
    assert len(admission._endings) < 50


def test_a_closed_queue_lets_nobody_in_and_hands_out_what_it_has() -> None:
    """A worker that stops still answers what it admitted."""
    admission = Admission()
    request = _request()
    admission.offer(request)
    admission.close()
    assert admission.offer(_request())
    assert admission.take(lambda found: found) == (request, request)
    assert admission.take(lambda found: found) is None


def test_closing_wakes_everyone_who_waits() -> None:
    """Or a worker with two decoders would never end."""
    admission = Admission()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(admission.take(lambda _: "x"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    admission.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert found == [None, None, None]


def test_a_place_that_gets_free_wakes_whoever_waits_for_it() -> None:
    """And the end of a budget, which needs no place."""
    admission = Admission()
    has_room = threading.Event()
    asked = threading.Event()
    found: list[Request] = []

    def choose(request: Request) -> str | None:
        asked.set()
        return "work" if has_room.is_set() or request.is_expired else None

    def take() -> None:
        while (taken := admission.take(choose)) is not None:
            found.append(taken[0])

    thread = threading.Thread(target=take)
    thread.start()
    patient, hasty = _request(), _request(camera="right", budget_ms=50)
    admission.offer(patient)
    admission.offer(hasty)
    assert asked.wait(WAIT_S)
    admission.close()
    while not found:  # The end of the budget is the event.
        thread.join(0.01)
    has_room.set()
    admission.wake()
    thread.join(WAIT_S)
    assert found == [hasty, patient]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("lr"), st.integers(1, 40), st.booleans()), max_size=120),
    st.integers(1, 8),
    st.integers(1, 100),
)
def test_nothing_is_lost_no_bound_exceeded_and_no_camera_disordered(
    events: list[tuple[str, str, int, bool]], max_frames: int, max_bytes: int
) -> None:
    """Whatever comes: every frame is taken, refused or made to give way, once."""
    admission = Admission(max_frames, max_bytes)
    offered: list[Request] = []
    taken: list[Request] = []
    refused: list[Request] = []
    for vehicle, camera, size, takes in events:
        request = _request(size, vehicle, camera, due_ns=size)
        offered.append(request)
        refused += admission.offer(request)
        assert admission.depth <= max_frames
        assert sum(len(entry.request.payload) for entry in admission._waiting.values()) == admission._bytes <= max_bytes
        if takes and admission.depth:
            taken.append(_take(admission))
    taken += _drain(admission)
    assert Counter(map(id, taken + refused)) == Counter(map(id, offered))
    place = {id(request): number for number, request in enumerate(offered)}
    for key in {(request.vehicle, request.camera) for request in taken}:
        order = [place[id(request)] for request in taken if (request.vehicle, request.camera) == key]
        assert order == sorted(order)
    assert admission._bytes == 0
    assert not admission._lines


@given(st.integers(2, 8), st.integers(8, 64), st.randoms(use_true_random=False))
def test_a_vehicle_that_offers_ten_times_as_much_gets_no_more(vehicles: int, max_frames: int, random: Random) -> None:
    """Every vehicle that always has a frame waiting gets an equal share of what is taken, to a frame."""
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


@pytest.mark.parametrize("takers", [1, 3])
def test_many_threads_offer_and_take_and_nothing_is_lost(takers: int) -> None:
    """The network thread offers while decoders take and engines wake them."""
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
    taking = [threading.Thread(target=take) for _ in range(takers)]
    for thread in offering + taking:
        thread.start()
    for thread in offering:
        thread.join(WAIT_S)
    admission.close()
    for thread in taking:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert Counter(map(id, [*taken, *refused])) == Counter(id(request) for part in offered for request in part)

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from bench.peers.clients import Answer, Job, PeerError
from bench.peers.workload import is_steady, many_at_a_time, one_in_flight, warm_up

TIMEOUT_S = 60.0


@dataclass
class StandIn:
    """A client that answers at once and counts its calls."""

    wrong: int = 0
    calls: int = 0
    closed: int = 0
    on_call: Callable[[int], None] = lambda _: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, job: Job) -> Answer:
        """Returns a mask with `wrong` wrong pixels."""
        with self.lock:
            self.calls += 1
            number = self.calls
        self.on_call(number)
        mask = job.mask.copy()
        mask.flat[: self.wrong] = 1
        return Answer(mask, inference_ns=0)

    def close(self) -> None:
        """Counts the closed clients."""
        with self.lock:
            self.closed += 1


def test_the_first_calls_after_a_pause_are_not_counted(job: Job) -> None:
    """The server was stopped before, so its first calls are slow because its caches are cold."""
    stand_in = StandIn()
    assert len(one_in_flight(lambda: stand_in, [job], 5, TIMEOUT_S)) == 5
    assert stand_in.calls > 5
    assert stand_in.closed == 1


def test_resource_usage_is_measured_during_the_counted_calls_only(job: Job) -> None:
    """Utilisation is processor time divided by the duration of the counted calls; a cold start counts every call."""
    stand_in = StandIn()
    calls: list[int] = []

    @contextmanager
    def meter() -> Iterator[None]:
        calls.append(stand_in.calls)
        yield
        calls.append(stand_in.calls)

    one_in_flight(lambda: stand_in, [job], 5, TIMEOUT_S, settling=2, meter=meter())
    assert calls == [2, 7]
    one_in_flight(lambda: stand_in, [job], 5, TIMEOUT_S, settling=0, meter=meter())
    assert calls[2:] == [7, 12]


def test_every_wrong_pixel_is_counted(job: Job) -> None:
    """Otherwise a fast server with wrong answers would win."""
    taken = one_in_flight(lambda: StandIn(wrong=3), [job], 4, TIMEOUT_S)
    assert [each.wrong_pixels for each in taken] == [3] * 4


def test_inference_time_is_not_part_of_the_serving_overhead(job: Job) -> None:
    """Inference times vary between calls by more than the overheads that are compared."""

    class SlowModel(StandIn):
        def ask(self, job: Job) -> Answer:
            return Answer(job.mask, inference_ns=2_000_000)

    (first, *_) = one_in_flight(SlowModel, [job], 4, TIMEOUT_S)
    assert first.inference_ms == 2.0
    assert first.overhead_ms == first.total_ms - 2.0


def test_a_slow_server_gets_fewer_calls_but_enough_for_a_median(job: Job) -> None:
    """Otherwise a server that takes seconds per call would delay the round by minutes."""
    assert len(one_in_flight(StandIn, [job], 1000, 0.0)) == 4
    _, concurrent = many_at_a_time(StandIn, [job], 1000, 3, 0.0)
    assert 3 < len(concurrent) < 1000


def test_several_clients_call_at_the_same_time(job: Job) -> None:
    """Clients that call one after the other would not measure throughput."""
    together = threading.Barrier(4, timeout=TIMEOUT_S)

    def meet(number: int) -> None:
        if number <= together.parties:
            together.wait()

    stand_in = StandIn(on_call=meet)
    answers_hz, taken = many_at_a_time(lambda: stand_in, [job], 8, 4, TIMEOUT_S)
    assert answers_hz > 0
    assert len(taken) == 12
    assert stand_in.closed == 4


def test_a_call_that_fails_ends_the_turn(job: Job) -> None:
    """Without the missing answers, the answer rate would be wrong."""

    def fail(number: int) -> None:
        if number == 5:
            raise PeerError("gone")

    with pytest.raises(PeerError, match="gone"):
        many_at_a_time(lambda: StandIn(on_call=fail), [job], 100, 2, TIMEOUT_S)


def test_a_server_is_warm_when_its_calls_no_longer_become_faster() -> None:
    """A fixed number of calls is too few for one server and a waste of time for another."""
    falling = [100.0, 80.0, 60.0, 50.0, 40.0, 30.0, 20.0, 15.0, 12.0, 10.0]
    assert not is_steady(falling)
    assert is_steady([*falling, *[10.0] * 8])
    assert not is_steady([10.0] * 9), "too few to decide"


def test_warming_up_ends_after_the_time_limit(job: Job) -> None:
    """The call times of some servers may never become steady."""
    stand_in = StandIn()
    assert warm_up(lambda: stand_in, [job], 0.0) == stand_in.calls == 4
    assert stand_in.closed == 1

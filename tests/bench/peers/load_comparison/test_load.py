import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from bench.peers.clients.client import Answer, PeerError
from bench.peers.load_comparison.load import is_steady, many_at_a_time, one_in_flight, warm_up
from bench.peers.rig.workload import Job

PATIENCE_S = 60.0


@dataclass
class StandIn:
    """Answers at once, and keeps count."""

    wrong: int = 0
    calls: int = 0
    closed: int = 0
    on_call: Callable[[int], None] = lambda _: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, job: Job) -> Answer:
        """A mask with so many wrong pixels."""
        with self.lock:
            self.calls += 1
            number = self.calls
        self.on_call(number)
        mask = job.mask.copy()
        mask.flat[: self.wrong] = 1
        return Answer(mask, inference_ns=0)

    def close(self) -> None:
        """Count."""
        with self.lock:
            self.closed += 1


def test_the_first_calls_after_a_rest_are_not_counted(job: Job) -> None:
    """The server was stopped until now: what its caches cost then says nothing of its serving."""
    stand_in = StandIn()
    assert len(one_in_flight(lambda: stand_in, [job], 5, PATIENCE_S)) == 5
    assert stand_in.calls > 5
    assert stand_in.closed == 1


def test_what_a_server_takes_is_metered_over_the_calls_that_count(job: Job) -> None:
    """Utilisation is processor time over these calls' time: others would have no time to it. A cold start has them all."""
    stand_in = StandIn()
    seen: list[int] = []

    @contextmanager
    def meter() -> Iterator[None]:
        seen.append(stand_in.calls)
        yield
        seen.append(stand_in.calls)

    one_in_flight(lambda: stand_in, [job], 5, PATIENCE_S, settling=2, meter=meter())
    assert seen == [2, 7]
    one_in_flight(lambda: stand_in, [job], 5, PATIENCE_S, settling=0, meter=meter())
    assert seen[2:] == [7, 12]


def test_every_wrong_pixel_is_counted(job: Job) -> None:
    """A server that is quick and wrong would else win."""
    taken = one_in_flight(lambda: StandIn(wrong=3), [job], 4, PATIENCE_S)
    assert [each.wrong_pixels for each in taken] == [3] * 4


def test_the_inference_of_a_call_is_no_part_of_what_serving_adds(job: Job) -> None:
    """The servers' inferences differ from call to call by more than what is compared."""

    class Thinker(StandIn):
        def ask(self, job: Job) -> Answer:
            return Answer(job.mask, inference_ns=2_000_000)

    (first, *_) = one_in_flight(Thinker, [job], 4, PATIENCE_S)
    assert first.inference_ms == 2.0
    assert first.overhead_ms == first.total_ms - 2.0


def test_a_slow_server_is_called_less_often_but_never_less_than_a_median_needs(job: Job) -> None:
    """One that takes seconds a call would else hold up the round for minutes."""
    assert len(one_in_flight(StandIn, [job], 1000, 0.0)) == 4
    _, crowded = many_at_a_time(StandIn, [job], 1000, 3, 0.0)
    assert 3 < len(crowded) < 1000


def test_several_clients_call_at_the_same_time(job: Job) -> None:
    """One after the other, however many there are, would measure no throughput."""
    together = threading.Barrier(4, timeout=PATIENCE_S)

    def meet(number: int) -> None:
        if number <= together.parties:
            together.wait()

    stand_in = StandIn(on_call=meet)
    answers_hz, taken = many_at_a_time(lambda: stand_in, [job], 8, 4, PATIENCE_S)
    assert answers_hz > 0
    assert len(taken) == 12
    assert stand_in.closed == 4


def test_a_call_that_fails_ends_the_turn(job: Job) -> None:
    """Of answers that never came there is no rate."""

    def fail(number: int) -> None:
        if number == 5:
            raise PeerError("gone")

    with pytest.raises(PeerError, match="gone"):
        many_at_a_time(lambda: StandIn(on_call=fail), [job], 100, 2, PATIENCE_S)


def test_a_server_is_warm_when_its_calls_get_no_faster() -> None:
    """A fixed number of calls is too few for one server and a waste of time for another."""
    falling = [100.0, 80.0, 60.0, 50.0, 40.0, 30.0, 20.0, 15.0, 12.0, 10.0]
    assert not is_steady(falling)
    assert is_steady([*falling, *[10.0] * 8])
    assert not is_steady([10.0] * 9), "too few to tell"


def test_warming_up_ends(job: Job) -> None:
    """A server whose calls take longer every time is never steady by its own."""
    stand_in = StandIn()
    assert warm_up(lambda: stand_in, [job], 0.0) == stand_in.calls == 4
    assert stand_in.closed == 1

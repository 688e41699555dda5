"""A vehicle whose frames end engines' processes is held off; the others' frames flow."""

import pytest

from cloud.engines.engine import InferenceError
from cloud.isolation.process import ProcessLostError
from cloud.serving.admission import Admission
from cloud.serving.circuit_breaker import STRIKES, CircuitBreaker
from shared import clock
from shared.messages.frame import Status, pack_frame
from shared.mqtt.bus import Properties
from tests.cloud.frontends.test_mqtt import FRAME, WAIT_S, open_door
from tests.support.batching import Gated, Line

S = 10**9


class Time:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_ns = 1000 * S

    def pass_(self, seconds: float) -> None:
        """So much time goes by."""
        self.now_ns += round(seconds * S)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The clock of the test."""
    made = Time()
    monkeypatch.setattr(clock, "now_ns", lambda: made.now_ns)
    return made


def _strike(circuit_breaker: CircuitBreaker, times: int = STRIKES) -> None:
    for _ in range(times):
        circuit_breaker.strike("bad")


def test_a_vehicle_is_held_off_for_a_growing_while(time: Time) -> None:
    """Five seconds, then twice as long each time; and nobody else is."""
    circuit_breaker = CircuitBreaker()
    _strike(circuit_breaker, STRIKES - 1)
    assert circuit_breaker.reason("bad") is None
    for seconds in (5, 10, 20, 40, 80, 160, 300, 300):
        circuit_breaker.strike("bad")
        time.pass_(seconds - 0.1)
        assert circuit_breaker.reason("bad") is not None
        assert circuit_breaker.reason("good") is None
        time.pass_(0.2)
        assert circuit_breaker.reason("bad") is None


def test_a_minute_of_peace_and_all_is_forgotten(time: Time) -> None:
    """A vehicle is restarted with another camera; a frame a day that kills an engine is the engine's fault."""
    circuit_breaker = CircuitBreaker()
    _strike(circuit_breaker)
    time.pass_(5 + 61)
    _strike(circuit_breaker, STRIKES - 1)
    assert circuit_breaker.reason("bad") is None
    for _ in range(10):
        time.pass_(61)
        circuit_breaker.strike("bad")
        assert circuit_breaker.reason("bad") is None


def test_what_is_remembered_is_bounded(time: Time) -> None:
    """Names cost nothing."""
    circuit_breaker = CircuitBreaker()
    for number in range(5000):
        time.pass_(0.001)
        circuit_breaker.strike(f"car-{number}")
    assert len(circuit_breaker._records) == 1024


@pytest.mark.usefixtures("time")
def test_frames_that_end_the_process_count_and_those_the_model_fails_on_do_not() -> None:
    """After three of them the engine is asked no more; two attempts each are all that they cost."""
    for error, reasons in ((ProcessLostError("died"), 3), (InferenceError("NaN"), 6)):
        line = Line(Gated(error=error, poison=(7,)), circuit_breaker=CircuitBreaker())
        line.start()
        line.engine.gate.set()
        for _ in range(6):
            while not line.batcher.reserve():
                pass
            line.batcher.put(line.request(7))
        line.finish()
        statuses = [status for _, status, _ in line.answers()]
        assert statuses == [Status.FAILED] * reasons + [Status.REJECTED] * (6 - reasons)
        assert len(line.engine.sizes) == 2 * reasons
    assert all(reason.startswith("poison: NaN") for *_, reason in line.answers())


@pytest.mark.usefixtures("time")
def test_a_vehicle_that_is_held_off_is_refused_at_the_door() -> None:
    """Its frames take no place in the queue, and it is told why."""
    circuit_breaker = CircuitBreaker()
    for _ in range(STRIKES):
        circuit_breaker.strike("car")
    admission = Admission()
    with open_door(admission, circuit_breaker=circuit_breaker) as door:
        door.send(pack_frame(FRAME), Properties(correlation=b"car/left/s1/7"))
        answer = door.answers.get(timeout=WAIT_S)
        assert answer.status is Status.REJECTED
        assert answer.reason == "vehicle car is held off for 5 s: 3 of its frames ended the engine's process"
        assert admission.depth == 0

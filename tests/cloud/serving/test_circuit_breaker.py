"""Vehicles whose frames end the process of an engine are blocked, other vehicles are not."""

import pytest

from cloud.isolation.engine import ProcessLostError
from cloud.serving.admission import STRIKES, CircuitBreaker
from shared import clock
from shared.inference.engine import InferenceError
from shared.messages.frame import Status
from tests.support.batching import BatcherRig, GatedEngine

S = 10**9


class Time:
    """A clock that moves only on request."""

    def __init__(self) -> None:
        self.now_ns = 1000 * S

    def advance(self, seconds: float) -> None:
        """Moves the clock."""
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


def test_a_vehicle_is_blocked_for_a_growing_time(time: Time) -> None:
    """The time starts at five seconds and doubles; other vehicles are not affected."""
    circuit_breaker = CircuitBreaker()
    _strike(circuit_breaker, STRIKES - 1)
    assert circuit_breaker.reason("bad") is None
    for seconds in (5, 10, 20, 40, 80, 160, 300, 300):
        circuit_breaker.strike("bad")
        time.advance(seconds - 0.1)
        assert circuit_breaker.reason("bad") is not None
        assert circuit_breaker.reason("good") is None
        time.advance(0.2)
        assert circuit_breaker.reason("bad") is None


def test_strikes_are_forgotten_after_a_minute(time: Time) -> None:
    """Rare crashes are the fault of the engine, not of the vehicle."""
    circuit_breaker = CircuitBreaker()
    _strike(circuit_breaker)
    time.advance(5 + 61)
    _strike(circuit_breaker, STRIKES - 1)
    assert circuit_breaker.reason("bad") is None
    for _ in range(10):
        time.advance(61)
        circuit_breaker.strike("bad")
        assert circuit_breaker.reason("bad") is None


def test_the_number_of_vehicles_is_bounded(time: Time) -> None:
    """Clients can invent vehicle names."""
    circuit_breaker = CircuitBreaker()
    for number in range(5000):
        time.advance(0.0001)
        for _ in range(STRIKES):
            circuit_breaker.strike(f"car-{number}")
    assert sum(circuit_breaker.reason(f"car-{number}") is not None for number in range(5000)) == 1024


@pytest.mark.usefixtures("time")
def test_only_frames_that_end_the_process_count() -> None:
    """After three of them, with two attempts each, the engine gets no more frames of the vehicle."""
    for error, reasons in ((ProcessLostError("died"), 3), (InferenceError("NaN"), 6)):
        rig = BatcherRig(GatedEngine(error=error, poison=(7,)), circuit_breaker=CircuitBreaker())
        rig.start()
        rig.engine.gate.set()
        for _ in range(6):
            while not rig.batcher.reserve():
                pass
            rig.batcher.put(rig.request(7))
        rig.finish()
        statuses = [status for _, status, _ in rig.answers()]
        assert statuses == [Status.FAILED] * reasons + [Status.REJECTED] * (6 - reasons)
        assert len(rig.engine.sizes) == 2 * reasons
    assert all(reason.startswith("poison: NaN") for *_, reason in rig.answers())

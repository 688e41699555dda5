import os
import signal
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.config import EdgeConfig
from edge.transports.mqtt_transport import MqttTransport, vehicle_will
from ops.processes.child import BenchError
from ops.processes.null_worker import ClockReading, NullEngine, NullWorkerProcess, NullWorkerSettings
from shared.mqtt.broker_options import BrokerOptions
from tests.pipeline.clock_truth import monotonic_at, now_at

YEAR_NS = 10**9 * 86_400 * 365
WAIT_S = 60.0


@given(
    reading_ns=st.integers(0, YEAR_NS),
    now_ns=st.integers(0, 60 * YEAR_NS),
    drift_ppm=st.floats(-500, 500),
    later_ns=st.integers(-(10**12), 10**12),
)
def test_a_stamp_converts_back_to_its_time(reading_ns: int, now_ns: int, drift_ppm: float, later_ns: int) -> None:
    """The clock benchmark relies on an error of nanoseconds over a quarter of an hour."""
    clock = ClockReading(reading_ns, now_ns, drift_ppm)
    time_ns = reading_ns + later_ns
    assert abs(monotonic_at(clock, now_at(clock, time_ns)) - time_ns) <= 2


def test_the_null_engine_returns_one_valid_class() -> None:
    """A mask must contain classes of the labels."""
    images = np.zeros((2, 8, 12, 3), np.uint8)
    classes = NullEngine(think_ms=1).infer(images)["mask"]
    assert classes.shape == (2, 8, 12)
    assert not classes.any()


@pytest.mark.mosquitto
def test_a_process_serves_its_model_with_the_given_clock_error(mosquitto_url: str) -> None:
    """The check of the clock's error bound relies on these readings."""
    settings = NullWorkerSettings(worker="instant-test", model="instant-test", height=16, width=24)
    with NullWorkerProcess(mosquitto_url, settings, clock_offset_s=3600, clock_drift_ppm=50) as worker:
        os.kill(worker.pid, 0)
        own = ClockReading.take()
        ahead_s = (now_at(worker.clock, own.monotonic_ns) - own.now_ns) / 1e9
        assert 3000 < ahead_s < 4200  # The wall clock may be set between the starts of two processes.
        assert worker.clock.drift_ppm == 50
        bus = BrokerOptions(mosquitto_url).open("instant-vehicle", vehicle_will("instant-vehicle", "s1"))
        with bus:
            transport = MqttTransport(bus, EdgeConfig(vehicle="instant-vehicle", model="instant-test"), "s1")
            card = transport.wait_for_card(WAIT_S)
            transport.close()
        assert (card.height, card.width, card.trained) == (16, 24, False)
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


def test_a_worker_that_cannot_start_raises() -> None:
    """A benchmark without its worker would wait endlessly."""
    with pytest.raises(BenchError, match=r"ended with code 1: .*write mqtt://host:1883"):
        NullWorkerProcess("http://127.0.0.1", NullWorkerSettings())


def test_a_worker_that_was_stopped_ends_on_sigterm(mosquitto_url: str) -> None:
    """The system may deliver the signal to another thread; the main thread must not wait without a timeout."""
    with NullWorkerProcess(mosquitto_url, NullWorkerSettings(worker="stopped", model="stopped")) as worker:
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
            os.kill(worker.pid, number)
        deadline_s = time.monotonic() + WAIT_S
        while worker.is_running and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert not worker.is_running

"""The pipeline over brokers other than Mosquitto, with workers and vehicles in processes of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.processes.child import BenchError
from shared import clock
from shared.runlog.latency_log import Outcome
from tests.brokers.other_brokers import Aedes, Amqtt, Nats, OtherBroker
from tests.support.faults.rig import Rig, answered_since, kill

FRAMES = 6
AHEAD_S = 3.0  # Lead of the worker's clock.
WINDOW = 4  # Frames of a vehicle that may be unanswered.
LAST_FRAMES_NS = 10**9  # How long before the drain a frame may have been due that was lost by it.
LARGE = 1024  # Height and width in pixels of frames of 3 MB.


@pytest.fixture(params=[Aedes, Amqtt, Nats])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OtherBroker]:
    """Runs each of the brokers."""
    folder = tmp_path / "broker"
    folder.mkdir()
    with request.param(folder) as running:
        yield running


def test_each_frame_of_two_vehicles_gets_its_own_mask(broker: OtherBroker, rig: Rig) -> None:
    """The masks are the right ones, none is accepted twice, and the worker's clock is measured.

    The broker's largest packet must suffice for a raw camera frame.
    """
    rig.worker(broker.url, clock_offset_s=AHEAD_S, height=LARGE, width=LARGE)
    source = rig.pictures(FRAMES, LARGE, LARGE)
    vehicles = [rig.vehicle(broker.url, f"car-{number}", source=source) for number in (1, 2)]
    assert [vehicle.wait() for vehicle in vehicles] == [0, 0]
    accounts = rig.accounts(*vehicles)
    assert not accounts.failures
    assert accounts.outcomes == {Outcome.ANSWERED: 2 * FRAMES}
    assert accounts.masks_checked == 2 * FRAMES
    for row in rig.rows():
        assert abs(float(row["clock_offset_ms"]) - 1e3 * AHEAD_S) <= float(row["clock_error_ms"])


def test_a_killed_and_a_drained_worker_are_replaced(broker: OtherBroker, rig: Rig) -> None:
    """The vehicle waits while no worker is online, which the will of the killed one announces.

    MQTT 3.1.1 does not report that nobody subscribes: only frames that were sent as a worker drained are lost.
    """
    worker = rig.worker(broker.url, think_ms=20)
    vehicle = rig.vehicle(broker.url, flags=("--loop",))
    rig.wait_for_frames([vehicle], 20)
    kill(worker.pid)
    killed_ns = clock.now_ns()
    worker = rig.worker(broker.url, think_ms=20)
    rig.wait(lambda: answered_since(vehicle, killed_ns), "an answer of the second worker")
    drain_ns = clock.now_ns()
    assert worker.drain() == 0
    after_ns = clock.now_ns()
    rig.worker(broker.url)
    rig.wait(lambda: answered_since(vehicle, after_ns), "an answer of the third worker")
    accounts = rig.end_vehicles()
    assert not accounts.failures
    assert accounts.unanswered == accounts.outcomes["lost"] <= WINDOW
    assert all(int(row["t_due_ns"]) > drain_ns - LAST_FRAMES_NS for row in vehicle.rows(Outcome.LOST))


def test_nodes_return_to_a_broker_that_was_killed(broker: OtherBroker, rig: Rig) -> None:
    """Both connect again and renew their subscriptions and status; every frame has its row."""
    rig.worker(broker.url)
    vehicle = rig.vehicle(broker.url, flags=("--loop",))
    rig.wait_for_frames([vehicle], 20)
    broker.kill()
    broker.start()
    after_ns = clock.now_ns()
    rig.wait(lambda: answered_since(vehicle, after_ns), "an answer after the broker returned")
    accounts = rig.end_vehicles()
    assert not accounts.failures


def test_a_second_worker_and_a_second_vehicle_of_a_name_are_refused(
    broker: OtherBroker, rig: Rig, tmp_path: Path
) -> None:
    """MQTT 3.1.1 has no shared subscriptions: two workers would answer every frame twice, and masks would be mixed."""
    rig.worker(broker.url)
    first = rig.vehicle(broker.url, flags=("--loop",))
    rig.wait_for_frames([first], 10)
    with pytest.raises(BenchError, match="cannot share frames between workers"):
        rig.worker(broker.url, "worker-2")
    with Rig(tmp_path / "second", 1) as second_rig:
        second = second_rig.vehicle(broker.url, flags=("--loop",), awaits_ready=False)
        assert second.wait() == 1
        assert "is already running" in second.output
    rig.wait_for_frames([first], 10)
    assert not rig.end_vehicles().failures

"""`skylane status --metrics`: the fleet for Prometheus, by the names that nodes and rules use."""

import re
import time
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from ops.fleet.cli import status
from ops.fleet.fleet import FleetMonitor
from ops.fleet.prometheus_metrics import FleetCollector
from shared import clock
from shared.health import SILENT_AFTER_S
from shared.messages.node_metrics import (
    Quantiles,
    VehicleMetrics,
    WorkerMetrics,
    pack_vehicle_metrics,
    pack_worker_metrics,
)
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import VEHICLE_METRICS, VEHICLE_STATUS, WORKER_METRICS, WORKER_STATUS
from tests.monitoring.promtool import RULES
from tests.ops.fleet.made_fleet import vehicle, worker
from tests.support.memory_bus import MemoryBus

WAIT_S = 60.0


def samples(fleet: FleetMonitor) -> dict[str, float]:
    """Returns what is exported, by name and labels that are not empty."""
    found = {}
    for family in FleetCollector(fleet).collect():
        for sample in family.samples:
            labels = [f"{name}={value}" for name, value in sorted(sample.labels.items()) if value]
            found[" ".join([sample.name, *labels])] = sample.value
    return found


def wait_for(fleet: FleetMonitor, is_there: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """Returns what is exported once `is_there` holds for it."""
    deadline_s = time.monotonic() + WAIT_S
    while not is_there(found := samples(fleet)):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.02)
    return found


def test_what_nodes_report_is_exported_until_they_leave() -> None:
    """Most vehicles stand behind NAT, where no Prometheus reaches them."""
    with MemoryBus() as bus:
        fleet = FleetMonitor()
        fleet.open(bus)
        worker(bus, "gpu-1", 20.0)
        totals = {"answered": 900, "overloaded": 7}
        report = WorkerMetrics(
            "s1", 60.0, {"answered": 600}, Quantiles(2.0, 4.0), Quantiles(20.0, None), 80.0, 1 << 30, None, None, totals
        )
        bus.publish(WORKER_METRICS.of(worker="gpu-1"), pack_worker_metrics(report), qos=0)
        vehicle(bus, "old")  # Of an earlier release: without totals.
        vehicle(bus, "car-1")
        totals = {"answered": 500, "dropped": 20}
        metrics = VehicleMetrics("s1", "road", 60.0, {"answered": 30}, "", Quantiles(80.0, 90.0), 1, 0.4, totals)
        bus.publish(VEHICLE_METRICS.of(vehicle="car-1"), pack_vehicle_metrics(metrics), qos=0)
        found = wait_for(fleet, lambda found: "skylane_vehicle_frames_total outcome=dropped vehicle=car-1" in found)
        of_car = {name: value for name, value in found.items() if "car-1" in name}
        assert of_car == {
            "skylane_broker_connected vehicle=car-1": 1,
            "skylane_vehicle_frames_in_flight vehicle=car-1": 1,
            "skylane_vehicle_clock_error_seconds vehicle=car-1": pytest.approx(0.0004),
            "skylane:vehicle_frame_seconds:p95 vehicle=car-1": pytest.approx(0.09),
            "skylane_vehicle_frames_total outcome=answered vehicle=car-1": 500,
            "skylane_vehicle_frames_total outcome=dropped vehicle=car-1": 20,
        }
        assert {name: value for name, value in found.items() if "gpu-1" in name} == {
            "skylane_broker_connected worker=gpu-1": 1,
            "skylane_frames_in_flight worker=gpu-1": 1,
            "skylane:worker_queue_seconds:p95 model=road worker=gpu-1": pytest.approx(0.004),
            "nv_inference_request_success worker=gpu-1": 900,
            "skylane_frames_refused_total outcome=overloaded worker=gpu-1": 7,
        }
        assert "skylane_vehicle_frames_total outcome=answered vehicle=old" not in found
        left = pack_status(NodeStatus(NodeState.OFFLINE, "s1"))
        bus.publish(VEHICLE_STATUS.of(vehicle="car-1"), left, qos=1, retained=True)
        bus.publish(WORKER_STATUS.of(worker="gpu-1"), left, qos=1, retained=True)
        found = wait_for(fleet, lambda found: not [name for name in found if "car-1" in name or "gpu-1" in name])
        assert "skylane_vehicle_frames_in_flight vehicle=old" in found
        bus.is_connected = False  # What was heard before is not the state of now.
        assert samples(fleet) == {"skylane_broker_connected": 0}


def test_a_silent_node_keeps_its_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last numbers are old, and would hide that it hangs."""
    with MemoryBus() as bus:
        fleet = FleetMonitor()
        fleet.open(bus)
        vehicle(bus, "car-1")
        wait_for(fleet, lambda found: "skylane_vehicle_frames_in_flight vehicle=car-1" in found)
        now_ns = clock.now_ns
        monkeypatch.setattr(clock, "now_ns", lambda: now_ns() + round((SILENT_AFTER_S + 1) * 1e9))
        assert samples(fleet) == {"skylane_broker_connected": 1, "skylane_broker_connected vehicle=car-1": 1}


def test_the_names_are_those_of_the_rules() -> None:
    """So that alerts and the dashboard work on a fleet, too."""
    text = RULES.read_text(encoding="utf-8")
    with MemoryBus() as bus:
        fleet = FleetMonitor()
        fleet.open(bus)
        names = {family.name for family in FleetCollector(fleet).collect()}
    recorded = {name for name in names if ":" in name}
    assert recorded <= set(re.findall(r"record: (\S+)", text))
    for name in ("skylane_vehicle_frames", "skylane_frames_refused", "nv_inference_request_success"):
        assert name in names
        assert name in text


def test_json_and_metrics_exclude_each_other() -> None:
    """One prints once, the other serves until Ctrl-C."""
    ended = CliRunner().invoke(status, ["--broker", "mqtt://127.0.0.1:1", "--metrics", ":0", "--json"])
    assert ended.exit_code == 2
    assert "give one of them" in ended.output

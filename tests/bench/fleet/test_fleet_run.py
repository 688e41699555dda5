from pathlib import Path
from typing import Any

import pytest

from bench.fleet.fleet_run import Change, FleetArrivals, FleetCase, run_cases
from ops.broker.broker import Broker


def _records(broker: Broker, folder: Path, case: FleetCase) -> list[dict[str, Any]]:
    return run_cases([case], broker, folder, rounds=1, seed=1)


@pytest.mark.mosquitto
def test_every_frame_of_every_vehicle_is_accounted_for(mosquitto_broker: Broker, tmp_path: Path) -> None:
    """The logs of all vehicles are consistent, and both kinds of dispatch answer every frame of a light load."""
    case = FleetCase("light", (5.0, 5.0), 6, FleetArrivals.POISSON, rate_hz=5.0, window=16, seconds=4.0)
    for record in _records(mosquitto_broker, tmp_path, case):
        assert record["failures"] == []
        assert record["unaccounted"] == 0
        assert sum(record["outcomes"].values()) == record["outcomes"]["answered"] > 0
        assert set(record["workers"]) == {"worker-1", "worker-2"}
        assert record["resources"]["broker"]["rss_mb"] > 0
        assert record["ideal_ms"]["median"] == pytest.approx(5.0)


@pytest.mark.mosquitto
def test_no_frame_is_lost_without_a_trace_when_a_worker_is_killed(mosquitto_broker: Broker, tmp_path: Path) -> None:
    """The frames that the worker held are retried; the next round has all workers again."""
    case = FleetCase("killed", (20.0, 20.0), 4, seconds=6.0, change=Change.KILL)
    records = _records(mosquitto_broker, tmp_path, case)
    for record in records:
        assert record["failures"] == []
        assert record["unaccounted"] == 0
        assert record["accepted_twice"] == 0
        assert len(record["workers"]) == 2
    assert set(records[0]["workers"]) != set(records[-1]["workers"])


@pytest.mark.mosquitto
def test_a_worker_that_joins_gets_frames(mosquitto_broker: Broker, tmp_path: Path) -> None:
    """The third worker starts in the middle of the run and has left before the next one."""
    case = FleetCase("joined", (20.0, 20.0), 4, seconds=8.0, change=Change.JOIN)
    for record in _records(mosquitto_broker, tmp_path, case):
        assert record["failures"] == []
        assert len(record["workers"]) == 3
        newcomer = list(record["by_worker"].values())[-1]
        assert newcomer["throughput_hz"] > 0

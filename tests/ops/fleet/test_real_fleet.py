"""`skylane status` of real nodes: workers and vehicles in processes of their own."""

import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import cv2
import numpy as np
import pytest

from ops.broker.broker import Broker
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from ops.processes.vehicle_process import VehicleProcess
from tests.conftest import need_mosquitto
from tests.monitoring.promtool import samples, wait_for
from tests.ops.fleet.made_fleet import problems, state_of
from tests.support.command import Command

pytestmark = pytest.mark.mosquitto
HEIGHT, WIDTH, WAIT_S = 48, 64, 90.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, VehicleProcess]]:
    """Two workers of three are fast, and car-2 has more frames than its window holds; yields the broker's URL and car-1."""
    need_mosquitto()
    folder = tmp_path_factory.mktemp("fleet")
    images = folder / "images"
    images.mkdir()
    for index in range(5):
        cv2.imwrite(str(images / f"{index}.png"), np.full((HEIGHT, WIDTH, 3), 40 * index, np.uint8))
    with ExitStack() as stack:
        broker = stack.enter_context(Broker.start(kind="mosquitto"))
        for name, think_ms in (("gpu-1", 20.0), ("gpu-2", 20.0), ("gpu-3", 400.0)):
            settings = NullWorkerSettings(worker=name, height=HEIGHT, width=WIDTH, think_ms=think_ms)
            stack.enter_context(NullWorkerProcess(broker.url, settings))
        usual = ["--broker", broker.url, "--model", "instant", "--codec", "raw", "--loop", "--no-sinks"]
        usual += ["--dispatch", "group"]  # By load, the slow worker would get hardly any frame.
        flags = {
            "car-2": ["--arrivals", "uniform", "--arrival-rate", "200", "--window", "1"],
            "car-1": ["--closed-loop", "--window", "1"],
        }
        for name, its in flags.items():
            vehicle = stack.enter_context(VehicleProcess(images, folder / name, [*usual, *its]))
        yield broker.url, vehicle


def test_the_slow_worker_and_the_dropping_vehicle_of_real_nodes_are_named(fleet: tuple[str, VehicleProcess]) -> None:
    """Each with its figure, and the numbers of all nodes."""
    url, _ = fleet
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        state = state_of(url)
        workers, vehicles = problems(state, "workers"), problems(state, "vehicles")
        rows = {row["name"]: row for kind in ("workers", "vehicles") for row in state[kind]}
        if "gpu-3" in workers and "car-2" in vehicles and all(row["frames_per_s"] for row in rows.values()):
            break  # A first report may come before the first result.
    assert workers["gpu-3"][0].startswith("slow: inference 4")
    assert vehicles["car-2"][0].startswith("loses ")
    assert "(dropped: " in vehicles["car-2"][0]
    assert rows.keys() == {"gpu-1", "gpu-2", "gpu-3", "car-1", "car-2"}
    assert all(rows[name]["memory_bytes"] > 1 << 20 for name in ("gpu-1", "gpu-2", "gpu-3"))
    assert all(rows[name]["total_ms"]["p50"] > 0 for name in ("car-1", "car-2"))
    assert all(row["frames_per_s"] > 0 for row in rows.values())


def test_prometheus_scrapes_the_fleet_at_one_address(fleet: tuple[str, VehicleProcess]) -> None:
    """`skylane status --metrics` hears of the nodes by the broker alone, until they end."""
    url, car_1 = fleet
    with Command("status", "--broker", url, "--metrics", "127.0.0.1:0") as serving:
        found = re.search(r"http://\S+/metrics", serving.read_line())
        assert found
        answered = 'skylane_vehicle_frames_total{outcome="answered",vehicle="car-1",worker=""}'
        first = _scraped(found[0], answered)
        success = 'nv_inference_request_success{vehicle="",worker="gpu-1"}'
        assert _scraped(found[0], answered, above=first[answered])
        assert _scraped(found[0], success)['skylane_broker_connected{vehicle="car-1",worker=""}'] == 1
        car_1.stop()
        wait_for(lambda: not any('vehicle="car-1"' in name for name in samples(found[0])))
        assert serving.end(signal.SIGINT)[0] == 0


def _scraped(url: str, name: str, above: float = 0.0) -> dict[str, float]:
    """Returns the samples of a scrape in which one is above a value."""
    found: dict[str, float] = {}

    def scrape() -> bool:
        found.update(samples(url))
        return found.get(name, 0.0) > above

    wait_for(scrape)
    return found

"""`skylane status` of real nodes: workers and vehicles in processes of their own."""

import time
from contextlib import ExitStack
from pathlib import Path

import cv2
import numpy as np
import pytest

from ops.broker.broker import Broker
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from ops.processes.vehicle_process import VehicleProcess
from tests.conftest import need_mosquitto
from tests.ops.fleet.made_fleet import problems, state_of

pytestmark = pytest.mark.mosquitto
HEIGHT, WIDTH, WAIT_S = 48, 64, 90.0


def test_the_slow_worker_and_the_dropping_vehicle_of_real_nodes_are_named(tmp_path: Path) -> None:
    """Two workers of three are fast, and one of two vehicles has more frames than its window holds."""
    need_mosquitto()
    images = tmp_path / "images"
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
            "car-1": ["--closed-loop", "--window", "1"],
            "car-2": ["--arrivals", "uniform", "--arrival-rate", "200", "--window", "1"],
        }
        for name, its in flags.items():
            stack.enter_context(VehicleProcess(images, tmp_path / name, [*usual, *its]))
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            state = state_of(broker.url)
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

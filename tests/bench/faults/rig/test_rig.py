"""The rig with real processes: it starts nodes, checks each mask against its image, and ends all processes."""

from pathlib import Path

import cv2
import psutil
import pytest

from bench.faults.rig.rig import Rig, RigError, freeze
from ops.processes.vehicle_process import VehicleError

pytestmark = pytest.mark.mosquitto
_IMAGES = 12


def test_a_run_without_a_fault_passes_and_a_changed_mask_fails(tmp_path: Path) -> None:
    """A bench that did not check the masks would report every label as right."""
    with Rig(tmp_path, seed=1) as rig:
        broker = rig.broker()
        worker = rig.worker(broker.url)
        vehicle = rig.vehicle(broker.url, pictures=_IMAGES)
        vehicle.wait()
        accounts = rig.end_vehicles()
        assert accounts.failures == []
        assert accounts.equation == f"{_IMAGES} read = {_IMAGES} answered"
        assert (accounts.masks_checked, accounts.masks_wrong) == (_IMAGES, 0)
        mask = next((vehicle.folder / "masks").rglob("*.png"))
        pixels = cv2.imread(str(mask), cv2.IMREAD_UNCHANGED)
        assert pixels is not None
        pixels[0, 0] = (pixels[0, 0] + 1) % 12
        cv2.imwrite(str(mask), pixels)
        assert rig.accounts(vehicle).failures == [f"1 of {_IMAGES} masks have a wrong label"]
        freeze(worker.pid)  # The rig must end a stopped process too.
        pids = [broker.pid, worker.pid]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_the_error_of_a_vehicle_that_cannot_start_is_quoted(tmp_path: Path) -> None:
    """Otherwise the scenario would wait for frames, and report only that they are missing."""
    with (
        Rig(tmp_path, seed=1) as rig,
        pytest.raises(VehicleError, match=r"vehicle-1 ended with exit code 1: no broker at"),
    ):
        rig.vehicle("mqtt://127.0.0.1:1", pictures=1, flags=("--connect-timeout", "0.1"))


def test_waiting_ends_after_the_time_limit(tmp_path: Path) -> None:
    """The error names the awaited event."""
    with Rig(tmp_path, seed=1) as rig, pytest.raises(RigError, match=r"not within 0.05 s: the moon"):
        rig.wait(lambda: False, "the moon", limit_s=0.05)

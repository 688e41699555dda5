"""The rig, with real processes: what it starts works, what it judges is judged by the pictures, and all of it ends."""

from pathlib import Path

import cv2
import psutil
import pytest

from bench.faults.rig.rig import Rig, RigError, freeze
from bench.faults.rig.vehicle_process import VehicleError

pytestmark = pytest.mark.mosquitto
_PICTURES = 12


def test_a_run_without_a_fault_holds_and_a_changed_mask_does_not(tmp_path: Path) -> None:
    """A bench that judged no mask would call every label right."""
    with Rig(tmp_path, seed=1) as rig:
        broker = rig.broker()
        worker = rig.worker(broker.url)
        vehicle = rig.vehicle(broker.url, pictures=_PICTURES)
        vehicle.finish()
        accounts = rig.accounts(vehicle)
        assert accounts.failures == []
        assert accounts.equation == f"{_PICTURES} read = {_PICTURES} answered"
        assert (accounts.masks_checked, accounts.masks_wrong) == (_PICTURES, 0)
        mask = next((vehicle.folder / "masks").rglob("*.png"))
        pixels = cv2.imread(str(mask), cv2.IMREAD_UNCHANGED)
        assert pixels is not None
        pixels[0, 0] = (pixels[0, 0] + 1) % 12
        cv2.imwrite(str(mask), pixels)
        assert rig.accounts(vehicle).failures == [f"1 of {_PICTURES} masks have a wrong label"]
        freeze(worker.pid)  # It must end all the same.
        pids = [broker.pid, worker.pid]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_vehicle_that_cannot_begin_is_told_in_its_own_words(tmp_path: Path) -> None:
    """A scenario that waited for its frames would only say that they did not come."""
    with (
        Rig(tmp_path, seed=1) as rig,
        pytest.raises(VehicleError, match=r"vehicle-1 ended with exit code 1: no broker at"),
    ):
        rig.vehicle("mqtt://127.0.0.1:1", pictures=1, flags=("--connect-timeout", "0.1"))


def test_what_does_not_come_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """And it is said what it was."""
    with Rig(tmp_path, seed=1) as rig, pytest.raises(RigError, match=r"not within 0.05 s: the moon"):
        rig.wait(lambda: False, "the moon", limit_s=0.05)

"""The rig with real processes: it starts nodes, checks each mask against its image, and ends all processes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import psutil
import pytest

from ops.processes.vehicle_process import VehicleError
from shared.runlog.latency_log import LatencyRow, LogWriter, Outcome
from tests.support.faults.rig import Rig, RigError, answered_since, freeze, open_frames

_IMAGES = 12


@pytest.mark.mosquitto
def test_a_run_without_a_fault_passes_and_a_changed_mask_fails(tmp_path: Path) -> None:
    """A rig that did not check the masks would report every label as right."""
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


def test_a_sent_frame_without_a_row_is_open(tmp_path: Path) -> None:
    """A frame that was sent twice counts once."""
    rows = [LatencyRow("car", "left", "s1", sequence, Outcome.ABORTED, "edge_died") for sequence in range(3)]
    with LogWriter(tmp_path) as log:
        for row in [*rows, rows[2]]:
            log.open(row)
        log.close(rows[0])
    assert open_frames(tmp_path) == 2


_MS = 10**6


def _vehicle(*rows: tuple[str, float, float]) -> Any:
    """Returns a vehicle whose log has these rows: outcome, due time of the frame, and time of the answer."""
    records = [
        {"outcome": outcome, "t_due_ns": str(round(due_ms * _MS)), "t_mask_decoded_ns": str(round(answered_ms * _MS))}
        for outcome, due_ms, answered_ms in rows
    ]
    return SimpleNamespace(rows=lambda outcome: [record for record in records if record["outcome"] == outcome])


def test_only_answers_to_frames_that_were_due_later_are_counted() -> None:
    """A resumed worker first answers the frames that it held, which does not show that it accepts new frames."""
    vehicle = _vehicle(("answered", 900.0, 2000.0), ("answered", 1100.0, 2100.0), ("lost", 1200.0, 0.0))
    assert answered_since(vehicle, 1000 * _MS) == [2100 * _MS]

"""An outage of the link, end to end: outputs decay from moved results to the local model's, and nothing stale follows."""

from contextlib import suppress
from pathlib import Path

import pytest

from ops.processes.vehicle_process import VehicleProcess
from shared import clock
from shared.network.link_spec import LinkSpec
from shared.runlog.latency_log import LogError
from shared.runlog.presented_log import OutputOrigin, PresentedRow, read_presented
from tests.support.faults.hostile.trigger_pixels import MODEL
from tests.support.faults.models import make_local_model
from tests.support.faults.presented import PresentedTicks, panning_pictures, stages, write_fusion_file
from tests.support.faults.rig import Rig

pytestmark = pytest.mark.mosquitto
_MAX_AGE_MS = 700.0
_DEADLINE_MS = 500.0
_AGAIN = 5  # Number of ticks that show that an outage has begun or ended.


def presented(vehicle: VehicleProcess, origin: OutputOrigin, since_ns: int = 0) -> int:
    """Counts the outputs of an origin at the ticks of a running vehicle that were due after a time."""
    rows: list[PresentedRow] = []
    with suppress(LogError):  # The vehicle has not created the log yet.
        rows = list(read_presented(vehicle.folder))
    return sum((row.due_ns or 0) > since_ns and row.origin is origin for row in rows)


def test_outputs_decay_in_an_outage_and_recover_without_stale_results(tmp_path: Path) -> None:
    """A vehicle acts on outputs while its link is gone: each is as new as it can be, and says what it is."""
    moved, left = OutputOrigin.FUSED, OutputOrigin.LOCAL
    with Rig(tmp_path, seed=1) as rig:
        models = make_local_model(rig)
        broker = rig.broker()
        rig.worker(broker.url, think_ms=20)
        link = rig.link(broker)
        flags = ["--loop", "--deadline-ms", f"{_DEADLINE_MS:g}", "--present", "fuse"]
        flags += ["--present-max-age-ms", f"{_MAX_AGE_MS:g}", "--local-model", MODEL, "--models", str(models)]
        flags += ["--fusion", str(write_fusion_file(rig, models, MODEL))]
        vehicle = rig.vehicle(link.url, source=panning_pictures(rig, 60), rate_hz=10.0, flags=flags)
        rig.wait(lambda: presented(vehicle, moved) >= _AGAIN, "outputs from results")
        cut_ns = clock.now_ns()
        link.set(LinkSpec(reset_after_s=0))
        rig.wait(lambda: presented(vehicle, left, cut_ns) >= _AGAIN, "outputs without results")
        back_ns = clock.now_ns()
        link.set(LinkSpec())
        rig.wait(lambda: presented(vehicle, moved, back_ns) >= _AGAIN, "outputs from new results")
        accounts = rig.end_vehicles()
        ticks = PresentedTicks(vehicle)
        wrong_masks = ticks.wrong_masks
    assert accounts.failures == []
    assert (ticks.unaccounted, wrong_masks) == (0, 0)
    assert stages(ticks.due(cut_ns, back_ns)) == [moved, left]
    assert max(row.age_ns or 0 for row in ticks.rows) <= _MAX_AGE_MS * 1e6
    # On a busy machine an output may be older than the deadline, but never of a frame from before the outage.
    assert not any((row.due_ns or 0) - row.age_ns < cut_ns for row in ticks.due(back_ns) if row.age_ns is not None)
    sent = [row for row in vehicle.rows() if int(row["t_sent_ns"] or 0) > back_ns]
    assert not any(int(row["t_sent_ns"]) - int(row["t_due_ns"]) > _DEADLINE_MS * 1e6 for row in sent)

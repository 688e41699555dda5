"""Presenting beside odd cameras and failing presenters: every frame has a tick with an output or a reason."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.logs.audit import audit
from cloud.models.loader import ModelLoader
from edge.presenting.presenter import PRESENTERS, ArrivedResult, Output, PresenterEntry, PresenterParts, Tick
from rosbag_tools.writer import BagWriter
from shared.models.repository import Repository
from shared.runlog.latency_log import read_rows
from shared.runlog.presented_log import OutputOrigin, PresentedRow, read_presented
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import check, play, worker
from tests.support.faults.hostile.trigger_pixels import MODEL, Mark
from tests.support.faults.models import make_local_model, marked_pictures
from tests.support.faults.presented import PresentedTicks, taken, write_fusion_file
from tests.support.faults.rig import Rig
from tests.support.local_models import write_segmentation

pytestmark = pytest.mark.mosquitto
HEIGHT, WIDTH = 64, 96
_STEP_NS = 10**8


@dataclass(frozen=True)
class Played:
    """A run that has ended."""

    rows: list[PresentedRow]
    frames: list[dict[str, str]]
    manifest: dict[str, Any]
    printed: str


def played(url: str, folder: Path, frames: Sequence[tuple[tuple[int, int], str]], present: str = "warp") -> Played:
    """Plays frames of these sizes and encodings with a presenter; checks the balance of ticks and frames.

    On a busy machine, too, every frame is sent and comes in time.
    """
    out = folder / "car"
    (folder / "models").mkdir()
    write_segmentation(folder / "models", "tiny", HEIGHT, WIDTH, 3)
    with BagWriter(folder / "drive", "mcap", "none") as writer:
        for number, (size, encoding) in enumerate(frames):
            pixels = np.zeros((*size, 1 if encoding == "mono8" else 3), np.uint8).squeeze()
            stamp_ns = 10**18 + _STEP_NS * number
            writer.write_image("/sensors/camera/left/image_raw", pixels, encoding, stamp_ns, stamp_ns, "left")
    options: dict[str, Any] = {"present": present, "codec": "raw", "window": 64, "queue": 64, "deadline_ms": 20_000}
    with ModelLoader(Repository(folder / "models")).open("tiny") as model, worker(url, model):
        code, printed = play(folder / "drive", url, out, **options)
    assert code == 0, printed
    logged = sorted(read_rows(out), key=lambda row: int(row["sequence"]))
    check(logged)
    assert audit(out) == ()
    rows = sorted(read_presented(out), key=lambda row: row.tick)
    assert [row.tick for row in rows] == [int(row["sequence"]) for row in logged]
    assert all((row.origin is OutputOrigin.NONE) == bool(row.reason) for row in rows)
    assert all(row.age_ns is None or row.age_ns >= 0 for row in rows)
    return Played(rows, logged, read_manifest(out), " ".join(printed.split()))


def test_a_camera_that_changes_its_size_or_encoding_starts_anew(mosquitto_url: str, tmp_path: Path) -> None:
    """A mask of another part of the scene, or flow between images that do not match, must not be presented."""
    kinds = [((128, 192), "rgb8"), ((64, 96), "rgb8"), ((64, 96), "32FC7"), ((64, 96), "mono8")]
    result = played(mosquitto_url, tmp_path, [kinds[number // 5] for number in range(20)])
    for row in result.rows:
        first = max(scene for scene in (0, 5, 15) if scene <= row.tick)
        assert row.source_sequence is None or first <= row.source_sequence <= row.tick
    reasons = [row.reason.partition(":")[0] for row in result.rows]
    assert "undecodable" in reasons[10:15]
    assert set(reasons[10:15]) <= {"undecodable", "skipped"}  # A busy machine skips ticks.
    assert set(reasons) <= {"", "no_result", "camera_changed", "skipped", "undecodable"}
    assert "camera_changed" in reasons
    assert result.manifest["presenting"]["restarts"] == 2
    assert OutputOrigin.WARPED in {row.origin for row in result.rows}


class FailingPresenter:
    """Raises at the second tick, and waits for ever from the fifth on."""

    released = threading.Event()

    def __init__(self, parts: PresenterParts) -> None:
        del parts

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        if tick.sequence == 1:
            raise ValueError("=1+1 is odd\x1b[2J\n")
        if tick.sequence >= 4:
            self.released.wait()
        return Output(OutputOrigin.NONE) if newest is None else Output(OutputOrigin.REMOTE, newest.result)


def test_a_presenter_that_fails_and_hangs_costs_its_ticks_and_the_run_ends_in_order(
    mosquitto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread cannot be stopped; the results of workers are written as ever, and the summary says what to look for."""
    monkeypatch.setitem(PRESENTERS, "plugin", PresenterEntry(f"{__name__}:FailingPresenter", "edge"))
    try:
        result = played(mosquitto_url, tmp_path, [((HEIGHT, WIDTH), "rgb8")] * 12, present="plugin")
    finally:
        FailingPresenter.released.set()
    failed = result.rows[1].reason
    assert failed == "skipped" or failed.startswith("failed: ")
    assert failed.isprintable()
    hung = [row.tick for row in result.rows if row.reason == "hung"]
    assert hung == list(range(hung[0], 12))
    assert len(hung) >= 6
    assert all(row["outcome"] == "answered" for row in result.frames)
    assert result.manifest["state"] == "complete"
    assert f"the presenter hung and left {len(hung)} of 12 frames" in result.printed


def test_a_local_model_that_fails_leaves_the_moved_results(tmp_path: Path) -> None:
    """The link is fine, so a result of a worker is there; a model that hangs is not asked again and stops no tick."""
    with Rig(tmp_path, seed=1) as rig:
        models = make_local_model(rig)
        broker = rig.broker()
        rig.worker(broker.url, think_ms=20)
        source = marked_pictures(rig, "marked", {10: Mark.RAISE, 16: Mark.HANG}, 28)
        flags = ["--present", "fuse", "--local-model", MODEL, "--models", str(models), "--local-timeout-ms", "300"]
        flags += ["--fusion", str(write_fusion_file(rig, models, MODEL))]
        vehicle = rig.vehicle(broker.url, source=source, rate_hz=10.0, flags=flags)
        vehicle.wait()
        accounts = rig.end_vehicles()
        ticks = PresentedTicks(vehicle)
        assert accounts.failures == []
        assert (ticks.unaccounted, ticks.wrong_masks) == (0, 0)
        alone = {OutputOrigin.WARPED, OutputOrigin.REMOTE}
        assert {row.origin for row in taken([ticks.rows[10], *ticks.rows[16:]])} <= alone
        assert OutputOrigin.FUSED in {row.origin for row in taken(ticks.rows[11:16])}

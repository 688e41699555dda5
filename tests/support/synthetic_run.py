"""Synthetic run folders as a vehicle writes them, also with gates, local models, several workers and overlays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from shared.runlog.latency_log import LatencyRow, Outcome
from shared.runlog.run_manifest import read_manifest, write_manifest
from shared.stages import CLOUD_STAGES, Stage
from tests.support import plain_run

CAMERA, BEGAN_NS = plain_run.CAMERA, plain_run.BEGAN_NS
_MS = 1_000_000
_PREPARED = (Stage.TAKEN, Stage.DEMOSAICED, Stage.PREPROCESSED)
_GATED_MS, _INFERRED_LOCALLY_MS = 0.4, 12.0
_GATE_THRESHOLD = 20.0
_SURE = 0.9  # Confidence from which the local model answers.
_KEPT_FIELDS = (
    "vehicle", "camera", "session", "sequence", "frame_index", "frame_stamp_ns", "source_ns", "read_ns", "model",
)  # fmt: skip
_GROUP_EVERY = 9  # With several workers, one of so many frames is sent to the group.
_LAST_WORKER_MS = 236  # Added to every inference of the last worker.
_FROM_INFERRED = {*CLOUD_STAGES[CLOUD_STAGES.index(Stage.INFERRED) :], Stage.RETURNED, Stage.MASK_DECODED}


@dataclass(frozen=True, slots=True)
class SyntheticRunPlan(plain_run.SyntheticRunPlan):
    """Settings of a synthetic run."""

    overlays: int = 0  # Number of frames with an overlay image, from the first on.
    reused: float = 0.0  # Share of the frames that a gate finds similar to an earlier frame with a result.
    local: float = 0.0  # Share of the other frames that the local model answers.
    workers: int = 1  # The last of several is three times as slow as the others and answers a third as many frames.


def write_run(folder: Path, plan: SyntheticRunPlan) -> Path:
    """Writes log, manifest and resource samples of a run; returns its folder."""
    results: list[LatencyRow] = []  # Frames with a result of their own.

    def change(row: LatencyRow, noise: np.random.Generator) -> LatencyRow:
        if plan.workers > 1:
            row = _of_worker(plan, row)
        if plan.reused or plan.local:
            row = _gated(plan, row, results, noise)
        if row.outcome in (Outcome.ANSWERED, Outcome.ANSWERED_LOCALLY):
            results.append(row)
        return row

    plain_run.write_run(folder, plan, change)
    if plan.reused or plan.local:
        manifest = read_manifest(folder)
        manifest["configuration"]["cascade"] = bool(plan.local)
        write_manifest(folder, manifest | _reuse_section(plan))
    for sequence in range(plan.overlays):
        image = np.full((120, 192, 3), (40 + 3 * sequence % 200, 90, 60), np.uint8)
        cv2.putText(image, f"#{sequence}", (20, 70), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (255, 255, 255), 2)
        (folder / "overlays").mkdir(exist_ok=True)
        cv2.imwrite(str(folder / "overlays" / f"sensors_camera_left_image_raw_{sequence:06d}.jpg"), image)
    return folder


def _of_worker(plan: SyntheticRunPlan, row: LatencyRow) -> LatencyRow:
    """Returns the row of a frame that is sent to one of several workers."""
    if not row.attempts:
        return row
    row = replace(row, dispatch="group" if row.sequence % _GROUP_EVERY == 0 else "load")
    if row.outcome is not Outcome.ANSWERED:
        return row
    order = [*range(1, plan.workers)] * 3 + [plan.workers]
    worker = order[row.sequence % len(order)]
    later_ns = _LAST_WORKER_MS * _MS if worker == plan.workers else 0
    edge, cloud = (
        {stage: at_ns + (later_ns if stage in _FROM_INFERRED else 0) for stage, at_ns in times.items()}
        for times in (row.edge_times, row.cloud_times)
    )
    session = f"a1b2c3d4e5{worker:02x}"
    return replace(row, worker=f"worker-{worker}", worker_session=session, edge_times=edge, cloud_times=cloud)


def _gated(
    plan: SyntheticRunPlan, row: LatencyRow, results: Sequence[LatencyRow], noise: np.random.Generator
) -> LatencyRow:
    """Returns the row of a frame that passes a gate and a local model before it is sent, if it is sent at all."""
    if Stage.TAKEN not in row.edge_times:
        return row
    times = {stage: row.edge_times[stage] for stage in (Stage.DUE, *_PREPARED)}
    own: dict[str, Any] = {name: getattr(row, name) for name in _KEPT_FIELDS}
    if plan.reused:
        gated_ns = times[Stage.GATED] = times[Stage.PREPROCESSED] + round(_GATED_MS * _MS * noise.gamma(20, 1 / 20))
        source = next((each for each in reversed(results) if max(each.edge_times.values()) <= gated_ns), None)
        if source is not None:
            is_similar = noise.random() < plan.reused
            own["gate_distance"] = _GATE_THRESHOLD * (noise.uniform(0, 1) if is_similar else 1 + noise.gamma(2, 1))
            if is_similar:
                return LatencyRow(**own, outcome=Outcome.REUSED, reused_sequence=source.sequence, edge_times=times)
    if plan.local:
        took_ns = round(_INFERRED_LOCALLY_MS * _MS * noise.gamma(20, 1 / 20))
        times[Stage.INFERRED_LOCALLY] = max(times.values()) + took_ns
        is_sure = noise.random() < plan.local
        own["local_confidence"] = noise.uniform(_SURE, 1) if is_sure else noise.uniform(0, _SURE)
        if is_sure:
            own |= {"engine": "tflite", "model_version": "1"}
            return LatencyRow(**own, outcome=Outcome.ANSWERED_LOCALLY, edge_times=times)
    later_ns = max(times.values()) - times[Stage.PREPROCESSED]
    edge = times | {stage: at_ns + later_ns for stage, at_ns in row.edge_times.items() if stage not in times}
    cloud = {stage: at_ns + later_ns for stage, at_ns in row.cloud_times.items()}
    measured: dict[str, Any] = {name: own.get(name) for name in ("gate_distance", "local_confidence")}
    return replace(row, edge_times=edge, cloud_times=cloud, **measured)


def _reuse_section(plan: SyntheticRunPlan) -> dict[str, Any]:
    """Returns the section `reuse` of the manifest; empty if every frame is sent."""
    section: dict[str, Any] = {"tuning": "configs/tuning/road-small.yaml"}
    if plan.reused:
        gate = {"method": "mse", "threshold": _GATE_THRESHOLD, "reuse_frames": 100, "reuse_ms": 15_000.0}
        section["gate"] = gate
    if plan.local:
        thresholds = {"temperature": 1.4, "c_low": 0.0, "c_high": _SURE}
        section["local"] = {"name": "road-tiny", "version": "1", "engine": "tflite fp32", **thresholds}
        section["measured"] = {
            "reliability_unit": "frames",
            "reliability": _reliability_bins(overconfidence=0.0),
            "reliability_uncalibrated": _reliability_bins(overconfidence=0.08),
        }
    return {"reuse": section} if plan.reused or plan.local else {}


def _reliability_bins(overconfidence: float) -> list[dict[str, float]]:
    return [
        {
            "low": place / 10,
            "high": (place + 1) / 10,
            "count": 40 + 30 * (place - 5) ** 2,
            "confidence": place / 10 + 0.05,
            "accuracy": place / 10 + 0.05 - overconfidence,
        }
        for place in range(5, 10)
    ]

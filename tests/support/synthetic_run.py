"""Synthetic run folders as a vehicle writes them, also with gates, local models, several workers and overlays."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from scipy.signal import lfilter

from shared.clock import Offset
from shared.files import write_file
from shared.resources.sampler import COLUMNS as RESOURCES
from shared.resources.sampler import RESOURCES_NAME
from shared.runlog.latency_log import LatencyRow, LogWriter, Outcome
from shared.runlog.run_manifest import write_manifest
from shared.runtime.machine import machine
from shared.stages import CLOUD_STAGES, Stage

BEGAN_NS = 1_790_000_000_000_000_000
CAMERA = "/sensors/camera/left/image_raw"
_MS = 1_000_000
_OFFSET_NS = 3_000 * _MS  # The worker's clock is three seconds ahead.
_EDGE_MS = {Stage.TAKEN: 0.2, Stage.DEMOSAICED: 3.0, Stage.PREPROCESSED: 0.9, Stage.ENCODED: 2.4, Stage.SENT: 0.05}
_CLOUD_MS = {
    Stage.DEQUEUED: 0.3, Stage.DECODED: 2.8, Stage.BATCHED: 1.5, Stage.INFERRED: 118.0, Stage.POSTPROCESSED: 0.02,
    Stage.MASK_ENCODED: 0.5, Stage.REPLIED: 0.01,
}  # fmt: skip
_CROSSING_MS = 4.0
_SHARE_SLOW = 0.004  # Frames delayed by an unrelated event.
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
class SyntheticRunPlan:
    """Settings of a synthetic run."""

    frames: int = 400
    seed: int = 0
    session: str = "5e551014ab1e"
    vehicle: str = "car"
    slower_ms: float = 0.0  # Added to every inference.
    hz: float = 7.0
    unanswered: float = 0.02  # Share of the frames.
    overlays: int = 0  # Number of frames with an overlay image, from the first on.
    reused: float = 0.0  # Share of the frames that a gate finds similar to an earlier frame with a result.
    local: float = 0.0  # Share of the other frames that the local model answers.
    workers: int = 1  # The last of several is three times as slow as the others and answers a third as many frames.


def write_run(folder: Path, plan: SyntheticRunPlan) -> Path:
    """Writes log, manifest and resource samples of a run; returns its folder."""
    noise = np.random.default_rng(plan.seed)
    # Consecutive frames are correlated, as in a real log: its effective sample is smaller than its number of rows.
    wave = lfilter([1.0], [1.0, -0.7], noise.normal(size=plan.frames))  # An AR(1) process.
    outcomes: Counter[Outcome] = Counter()
    results: list[LatencyRow] = []  # Frames with a result of their own.
    with LogWriter(folder) as log:
        for sequence in range(plan.frames):
            row = _row(plan, sequence, float(wave[sequence]), noise)
            if plan.workers > 1:
                row = _of_worker(plan, row)
            if plan.reused or plan.local:
                row = _gated(plan, row, results, noise)
            if row.outcome in (Outcome.ANSWERED, Outcome.ANSWERED_LOCALLY):
                results.append(row)
            outcomes[row.outcome] += 1
            if row.attempts:
                log.open(replace(row, outcome=Outcome.ABORTED))
            log.close(row)
    _write_manifest(folder, plan, outcomes)
    _write_resources(folder, plan, noise)
    for sequence in range(plan.overlays):
        image = np.full((120, 192, 3), (40 + 3 * sequence % 200, 90, 60), np.uint8)
        cv2.putText(image, f"#{sequence}", (20, 70), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (255, 255, 255), 2)
        (folder / "overlays").mkdir(exist_ok=True)
        cv2.imwrite(str(folder / "overlays" / f"sensors_camera_left_image_raw_{sequence:06d}.jpg"), image)
    return folder


def _row(plan: SyntheticRunPlan, sequence: int, wave: float, noise: np.random.Generator) -> LatencyRow:
    due_ns = BEGAN_NS + round(sequence / plan.hz * 1e9)
    facts: dict[str, Any] = {
        "vehicle": plan.vehicle,
        "camera": CAMERA,
        "session": plan.session,
        "sequence": sequence,
        "frame_index": sequence,
        "frame_stamp_ns": due_ns,
        "source_ns": due_ns,
        "read_ns": round(25 * _MS * noise.uniform(0.8, 1.2)),
        "model": "road-small",
    }
    fate = noise.random()
    if fate < plan.unanswered / 2:
        return LatencyRow(**facts, outcome=Outcome.DROPPED, reason="window", edge_times={Stage.DUE: due_ns})
    edge = {Stage.DUE: due_ns}
    at_ns = due_ns
    for stage, mean_ms in _EDGE_MS.items():
        at_ns += round(mean_ms * _MS * noise.gamma(8, 1 / 8))
        edge[stage] = at_ns
    sent: dict[str, Any] = {
        "attempts": 1,
        "dispatch": "load",
        "bytes_up": int(noise.integers(76_000, 84_000)),
        "edge_times": edge,
    }
    if fate < plan.unanswered:
        return LatencyRow(**facts, **sent, outcome=Outcome.LOST, reason="no answer")
    spike_ms = float(noise.gamma(2, 90)) if noise.random() < _SHARE_SLOW else 0.0
    uplink_ns, downlink_ns = (round(_CROSSING_MS / 2 * _MS * noise.gamma(6, 1 / 6)) for _ in range(2))
    cloud_ns = at_ns + uplink_ns + _OFFSET_NS
    cloud = {Stage.RECEIVED: cloud_ns}
    for stage, mean_ms in _CLOUD_MS.items():
        extra_ms = 6 * wave + spike_ms + plan.slower_ms if stage is Stage.INFERRED else 0.0
        cloud_ns += max(1_000, round((mean_ms * noise.gamma(60, 1 / 60) + extra_ms) * _MS))
        cloud[stage] = cloud_ns
    edge[Stage.RETURNED] = cloud_ns - _OFFSET_NS + downlink_ns
    edge[Stage.MASK_DECODED] = edge[Stage.RETURNED] + round(2.9 * _MS * noise.gamma(20, 1 / 20))
    error_ns = round(_MS * (1.6 + 0.004 * (sequence % 64)))
    return LatencyRow(
        **facts,
        **sent,
        outcome=Outcome.ANSWERED,
        model_version="1",
        engine="tensorflow fp32",
        worker="worker-1",
        worker_session="a1b2c3d4e501",
        batch_size=1,
        bytes_down=int(noise.integers(13_000, 16_000)),
        cloud_times=cloud,
        clock=Offset(_OFFSET_NS + round(0.3 * _MS * np.sin(sequence / 90)), error_ns),
    )


def _write_manifest(folder: Path, plan: SyntheticRunPlan, outcomes: Mapping[Outcome, int]) -> None:
    manifest = {
        "kind": "run",
        "state": "complete",
        "session": plan.session,
        "vehicle": plan.vehicle,
        "started_ns": BEGAN_NS - 500 * _MS,
        "ended_ns": BEGAN_NS + round(plan.frames / plan.hz * 1e9) + 500 * _MS,
        "source": {"kind": "bag", "path": "drive-2026", "format": "mcap", "sha256": "23a7b80c" * 8},
        "model": {"name": "road-small", "version": "1", "sha256": "0e63b722" * 8, "trained": True},
        "configuration": {
            "transport": "mqtt",
            "broker": "mqtt://127.0.0.1:1883",
            "codec": "jpeg",
            "quality": 85,
            "window": 4,
            "cascade": bool(plan.local),
        },
        "host": machine(),
        "commit": "0123456789ab",
        "frames_read": plan.frames,
        "outcomes": {outcome.value: outcomes.get(outcome, 0) for outcome in Outcome},
        "rows_lost": 0,
        **_reuse_section(plan),
    }
    write_manifest(folder, manifest)


def _write_resources(folder: Path, plan: SyntheticRunPlan, noise: np.random.Generator) -> None:
    nodes = {"vehicle/car": (35, 180e6), "worker/worker-1": (160, 900e6), "broker": (4, 9e6), "machine": (205, 4e9)}
    with io.StringIO() as file:
        writer = csv.DictWriter(file, RESOURCES, restval="")
        writer.writeheader()
        for second in range(int(plan.frames / plan.hz) + 1):
            for pid, (node, (cpu, rss)) in enumerate(nodes.items(), start=100):
                sample = {
                    "at_ns": BEGAN_NS + second * 1_000 * _MS,
                    "node": node,
                    "cpu_percent": f"{cpu * noise.uniform(0.8, 1.2):.2f}",
                    "rss_bytes": int(rss * noise.uniform(0.98, 1.02)),
                }
                if node != "machine":
                    sample |= {"pid": pid, "bytes_in": second * 560_000, "bytes_out": second * 105_000}
                writer.writerow(sample)
        write_file(folder / RESOURCES_NAME, file.getvalue())


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
    if not plan.reused and not plan.local:
        return {}
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
    return {"reuse": section}


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

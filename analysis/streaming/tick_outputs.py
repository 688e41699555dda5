"""The outputs of a run by camera and tick: those of its presenter, or those that holding the newest result would have given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.logs.run_log import frames_with_result, result_times_ns
from modelling.evaluation.bag_images import EvaluationError
from shared.runlog.latency_log import Outcome
from shared.runlog.presented_log import OutputOrigin, read_presented


@dataclass(frozen=True, slots=True)
class RunModel:
    """The model of a run, as far as its manifest describes it."""

    task: str
    names: tuple[str, ...]  # Names of the classes.
    height: int  # Height of the input in pixels.
    width: int  # Width of the input in pixels.

    @classmethod
    def of(cls, manifest: Mapping[str, Any], folder: Path) -> "RunModel":
        """Returns the model of a run.

        Raises:
            EvaluationError: The manifest does not describe it.
        """
        model = manifest.get("model")
        model = model if isinstance(model, Mapping) else {}
        task, names = model.get("task"), model.get("labels")
        sides = [model.get("height"), model.get("width")]
        is_described = isinstance(names, list) and names and all(isinstance(side, int) and side > 0 for side in sides)
        if not isinstance(task, str) or not is_described:
            raise EvaluationError(
                f"{folder}: its manifest does not name the classes of the model, as those of earlier versions: play the run "
                "again"
            )
        return cls(task, tuple(map(str, names or ())), *map(int, sides))  # type: ignore[arg-type]  # Checked above.


NO_RESULT = "no_result"  # The reason of a tick before the first result.
_NS_IN_MS = 1e6


@dataclass(frozen=True, slots=True)
class TickOutput:
    """The output that the vehicle could act on when a frame of one camera was due."""

    sequence: int
    due_ns: int | None  # None if a killed run does not know it; the same for the stamp.
    stamp_ns: int | None  # The stamp of the tick's frame, which is that of its labels.
    origin: OutputOrigin
    age_ns: int | None = None  # Time from the frame of the result to the tick; None without an output.
    source: int | None = None  # The frame under which the result is stored; None without an output.
    reason: str = ""  # The reason for a missing output.
    processing_ms: float | None = None  # The time that the presenter took.
    flow: str = ""  # The size of the optical flow that moved it, or "none"; empty if it needed none.


OutputsByCamera = Mapping[str, Sequence[TickOutput]]


def presented_outputs(folder: Path) -> OutputsByCamera:
    """Returns the outputs that the presenter of a run logged. Each is stored under its tick.

    Raises:
        LogError: The log of outputs cannot be read.
    """
    outputs: dict[str, list[TickOutput]] = {}
    for row in read_presented(folder):
        has_output = row.origin is not OutputOrigin.NONE
        outputs.setdefault(row.camera, []).append(
            TickOutput(
                row.tick,
                row.due_ns,
                row.frame_stamp_ns,
                row.origin,
                (row.age_ns or 0) if has_output else None,
                row.tick if has_output else None,
                row.reason,
                None if row.processing_ns is None else row.processing_ns / _NS_IN_MS,
                row.flow,
            )
        )
    return {camera: sorted(ticks, key=lambda tick: tick.sequence) for camera, ticks in outputs.items()}


def own_outputs(frames: pd.DataFrame) -> OutputsByCamera:
    """Returns each result as the output for its own frame, as if it had taken no time: the ceiling."""
    found = frames_with_result(frames)
    return {
        camera: [
            TickOutput(sequence, due_ns, stamp_ns, _origin(outcome), 0, sequence)
            for sequence, due_ns, stamp_ns, outcome in _rows(results)
        ]
        for camera, results in _by_camera(found)
    }


def held_outputs(frames: pd.DataFrame, stored: Mapping[str, npt.NDArray[np.int64]]) -> OutputsByCamera:
    """Returns, for each tick, the newest stored result that had arrived when it was due.

    A result of a frame older than that of an earlier result is not used. `stored` has the frames with a stored result by
    camera.
    """
    return {camera: _held(ticks, stored.get(camera, np.empty(0, np.int64))) for camera, ticks in _by_camera(frames)}


def _held(ticks: pd.DataFrame, stored: npt.NDArray[np.int64]) -> list[TickOutput]:
    results = frames_with_result(ticks)
    results = results[results["sequence"].isin(stored)].assign(at_ns=result_times_ns)
    results = results[results["at_ns"].notna()].sort_values("at_ns", kind="stable")
    at_ns = results["at_ns"].to_numpy(np.int64)
    newest = np.maximum.accumulate(results["sequence"].to_numpy(np.int64)) if len(results) else np.empty(0, np.int64)
    by_sequence = ticks.set_index("sequence")
    outputs = []
    for sequence, due_ns, stamp_ns, _ in _rows(ticks):
        arrived = 0 if due_ns is None else int(np.searchsorted(at_ns, due_ns, side="right"))
        if due_ns is None or not arrived:
            outputs.append(TickOutput(sequence, due_ns, stamp_ns, OutputOrigin.NONE, reason=NO_RESULT))
            continue
        source = int(newest[arrived - 1])
        row = by_sequence.loc[source]
        age_ns = max(0, due_ns - int(row["t_due_ns"]))
        outputs.append(TickOutput(sequence, due_ns, stamp_ns, _origin(row["outcome"]), age_ns, source))
    return outputs


def _by_camera(frames: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Returns the frames of each camera in order, without rows of a damaged log whose number is not known."""
    known = frames[frames["sequence"].notna()]
    ordered = known.drop_duplicates("sequence").sort_values("sequence", kind="stable")
    return [(str(camera), rows) for camera, rows in ordered.groupby("camera", sort=False)]


def _rows(frames: pd.DataFrame) -> list[tuple[int, int | None, int | None, str]]:
    """Returns sequence, due time, stamp and outcome of each frame."""
    columns = ("sequence", "t_due_ns", "frame_stamp_ns", "outcome")
    return [
        (int(sequence), _integer(due_ns), _integer(stamp_ns), str(outcome))
        for sequence, due_ns, stamp_ns, outcome in zip(*(frames[name] for name in columns), strict=True)
    ]


def _integer(value: object) -> int | None:
    return None if pd.isna(value) else int(value)  # type: ignore[call-overload]  # A cell of an Int64 column.


def _origin(outcome: str) -> OutputOrigin:
    return OutputOrigin.LOCAL if outcome == Outcome.ANSWERED_LOCALLY else OutputOrigin.REMOTE

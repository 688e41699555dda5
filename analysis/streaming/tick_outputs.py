"""The outputs of a run by camera and tick: those of its presenter, and those that holding the newest result would have given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.logs.run_log import frames_with_result, result_times_ns
from modelling.evaluation.bag_images import EvaluationError
from modelling.evaluation.streaming import newest_ready
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


NO_RESULT = "no_result"  # The reason of a tick before the first output.
_NS_IN_MS = 1e6


@dataclass(frozen=True, slots=True)
class TickOutput:
    """An output of one camera that counts at a tick, or that was made for it."""

    sequence: int
    due_ns: int | None  # None if a killed run does not know it; the same for the stamp.
    stamp_ns: int | None  # The stamp of the tick's frame, which is that of its labels.
    origin: OutputOrigin
    age_ns: int | None = None  # Time from the frame of the result to the tick; None without an output.
    source: int | None = None  # The frame or tick under which the output is stored; None without an output.
    reason: str = ""  # The reason for a missing output.
    ready_ns: int | None = None  # The time at which the output was ready; None if it is unknown.
    flow: str = ""  # The size of the optical flow that moved it, or "none"; empty if it needed none.

    @property
    def after_due_ms(self) -> float:
        """Time from the tick until its output was ready; NaN without one, and if it is unknown."""
        if self.source is None or self.ready_ns is None or self.due_ns is None:
            return float("nan")
        return (self.ready_ns - self.due_ns) / _NS_IN_MS


OutputsByCamera = Mapping[str, Sequence[TickOutput]]


def presented_outputs(folder: Path) -> OutputsByCamera:
    """Returns the output that the presenter of a run made for each tick, and logged. Each is stored under its tick.

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
                row.presented_ns,
                row.flow,
            )
        )
    return {camera: sorted(ticks, key=lambda tick: tick.sequence) for camera, ticks in outputs.items()}


def own_outputs(frames: pd.DataFrame) -> OutputsByCamera:
    """Returns each result as the output of its own frame, with age 0, as if it had taken no time: the ceiling.

    `ready_ns` is the time at which the result arrived.
    """
    found = frames_with_result(frames)
    found = found.assign(at_ns=result_times_ns)
    return {
        camera: [
            TickOutput(sequence, due_ns, stamp_ns, _origin(outcome), 0, sequence, ready_ns=_integer(at_ns))
            for (sequence, due_ns, stamp_ns, outcome), at_ns in zip(_rows(results), results["at_ns"], strict=True)
        ]
        for camera, results in _by_camera(found)
    }


def held_outputs(frames: pd.DataFrame, results: OutputsByCamera) -> OutputsByCamera:
    """Returns, for each frame, the newest of the results that had arrived when it was due."""
    return {
        camera: at_ticks(
            results.get(camera, ()),
            [TickOutput(*row[:3], OutputOrigin.NONE, reason=NO_RESULT) for row in _rows(ticks)],
        )
        for camera, ticks in _by_camera(frames)
    }


def at_ticks(made: Sequence[TickOutput], ticks: Sequence[TickOutput]) -> list[TickOutput]:
    """Returns the output that counts at each tick of a camera, see `newest_ready`; its age is that at the tick."""
    by_tick = {
        each.sequence: each for each in made if each.source is not None and None not in (each.ready_ns, each.due_ns)
    }
    ready_ns = [each.ready_ns or 0 for each in by_tick.values()]
    found = newest_ready(list(by_tick), ready_ns, [tick.due_ns for tick in ticks])
    outputs = []
    for tick, number in zip(ticks, found, strict=True):
        output = replace(tick, origin=OutputOrigin.NONE, age_ns=None, source=None, reason=NO_RESULT)
        if number is not None:
            newest = by_tick[number]
            age_ns = max(0, (tick.due_ns or 0) - (newest.due_ns or 0) + (newest.age_ns or 0))
            output = replace(newest, sequence=tick.sequence, due_ns=tick.due_ns, stamp_ns=tick.stamp_ns, age_ns=age_ns)
        outputs.append(output)
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

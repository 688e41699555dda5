"""Recorded runs as data frames: `skylane.open_run`, `skylane.compare` and `skylane.differences`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.logs.run_log import RunLog, distinct_names, load_run
from analysis.report.chapters.comparisons.runs import compare_totals
from analysis.report.chapters.run.distribution import STATISTICS, describe_stages
from analysis.report.chapters.run.stages import stage_summaries
from analysis.report.chapters.streaming import streaming_json
from analysis.report.data.answered_frames import FrameGroup, answered_frames
from analysis.statistics.description import IntervalEstimate
from analysis.streaming.run_accuracy import PRESENTED, run_accuracy
from shared.errors import SkylaneError
from shared.imaging.image_files import read_mask
from shared.messages.topics import CameraNames
from shared.runlog.presented_log import COLUMNS, read_presented
from skylane.arguments import ArgumentError, list_argument, path_argument

MaskArray = npt.NDArray[np.uint8]


class Run:
    """A recorded run; `skylane.open_run` opens one.

    Attributes:
        log: What was read, with the problems of its files.
        folder: The run's folder.
        frames: The latency log, one row per frame that was read. Columns that end in `_ms` are durations, float64 with NaN;
            those that end in `_ns` are times or durations, Int64 with <NA>; times are since 1970, of the vehicle's clock.
        manifest: What `manifest.json` says: model, settings, source, machines. Empty if it cannot be read.
        masks: The masks that the workers returned, by the frame's `sequence`.
        output_masks: The masks that a presenter gave out, by the tick's `sequence`.
    """

    def __init__(self, log: RunLog) -> None:
        self.log = log
        self.folder = log.folder
        self.frames = log.frames
        self.manifest = log.manifest
        self.masks = StoredMasks(log.folder / "masks", log.frames)
        self.output_masks = StoredMasks(log.folder / PRESENTED / "masks", log.frames)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.log.name

    @property
    def outputs(self) -> pd.DataFrame:
        """The output for every frame when it was due: `tick` (the frame's sequence), `origin`, `age_ns`, `reason`, ….

        Raises:
            LogError: the run had no presenter, or its log of outputs cannot be read.
        """
        rows = [asdict(row) for row in read_presented(self.folder)]
        outputs = pd.DataFrame(rows, columns=list(rows[0]) if rows else [*COLUMNS])
        return outputs.astype({name: "Int64" for name in outputs if name.endswith(("_ns", "_index", "_sequence"))})

    def accuracy(self, truth: Path | str) -> pd.DataFrame:
        """Scores the run against the true labels in a bag, at the tick and for the tick.

        Returns:
            A row for what is scored: `at_tick` (the newest output that was ready when the tick was due; without a presenter the
            newest result), `held` (holding the newest result), `ceiling` (each result against the labels of its own frame, as
            if it took no time) and, with a presenter, `for_tick` (the output made for the tick, ready `attrs["after_due_ms"]`
            after the tick was due: p50, p95). `accuracy` is the mean IoU of masks or the
            mean average precision of boxes, with its 95 % interval in `accuracy_low` and `accuracy_high`;
            `accuracy_all_ticks` counts ticks without an output as wrong. One more column for each class. `attrs` has the
            `metric`, the `scored` and `unscored` ticks and the `cautions`.

        Raises:
            SkylaneError: the run has no results of the sink `bag`, or the bag does not have the labels of its frames.
        """
        scores = streaming_json(run_accuracy(self.log, path_argument("truth", truth, "a bag with true labels")))
        names = [name for name, value in scores.items() if isinstance(value, Mapping) and "by_class" in value]
        kinds = ("accuracy", "accuracy_all_ticks")
        rows = [_cells(**{kind: scores[name][kind] for kind in kinds}) | scores[name]["by_class"] for name in names]
        table = pd.DataFrame(rows, index=pd.Index(names, name="scored"))
        table.attrs.update({key: scores[key] for key in ("metric", "scored", "unscored", "cautions", "after_due_ms")})
        return table


OneOrMoreRuns = Run | Path | str | Iterable[Run | Path | str]


class NoMaskError(SkylaneError, KeyError):
    """A run has no stored mask of a frame."""

    __str__ = Exception.__str__  # That of a KeyError puts the message in quotes.


class StoredMasks(Mapping[int, MaskArray]):
    """Masks that the sink `png` stored, by the sequence number of the frame: H×W uint8 class ids, read one at a time."""

    def __init__(self, folder: Path, frames: pd.DataFrame) -> None:
        self._folder = folder
        columns = (frames["sequence"], frames["camera"], frames["frame_index"])
        rows = sorted(
            (int(n), str(camera), int(i)) for n, camera, i in zip(*columns, strict=True) if pd.notna(n) and pd.notna(i)
        )
        names = CameraNames(camera for _, camera, _ in rows)
        paths = {folder / names[camera] / f"{index:06d}.png": number for number, camera, index in rows}
        # In a looped run, the file of a frame is that of its last repetition.
        self._paths = {number: path for path, number in paths.items() if path.exists()}

    def __getitem__(self, sequence: int) -> MaskArray:
        if sequence not in self._paths:
            raise NoMaskError(
                f"{self._folder} has no mask of frame {sequence}: it has {len(self)}, stored by the sink png"
            )
        return read_mask(self._paths[sequence])

    def __iter__(self) -> Iterator[int]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def open_run(path: Path | str) -> Run:
    """Opens the folder of a run of `skylane edge play`, `demo` or `play(…, out=…)`.

    Raises:
        SkylaneError: there is no latency log, or it lacks columns.
    """
    return Run(load_run(path_argument("path", path, "the folder of a run")))


def compare(runs: OneOrMoreRuns) -> pd.DataFrame:
    """Returns the time by stage of each run, of its frames answered by a worker, as in the report.

    Returns:
        A row for each `run` and `stage` (the index), with `where` it takes place, the number of frames, `share` of the total
        time (0 to 1), and in milliseconds `mean_ms`, `p25_ms` to `p99_9_ms`, `minimum_ms`, `maximum_ms` and `std_ms`. Mean
        and percentiles have 95 % intervals, such as `p50_low_ms` and `p50_high_ms`, NaN where there are too few frames.
        Sums of stages (`uplink`, `downlink`, `cloud`, `total`) are rows, too.

    Raises:
        SkylaneError: a path is not the folder of a run.
    """
    rows = []
    for log in _logs(runs):
        answered = answered_frames(log.frames)
        summaries = {summary.name: summary for summary in stage_summaries(answered)}
        for stage, found in describe_stages(answered).items():
            summary = summaries.get(stage)
            row = {"run": log.name, "stage": stage, "where": summary.where if summary else "", "frames": found.count}
            row |= {"share": summary.share if summary else np.nan}
            numbers = _cells(**{name: getattr(found, name) for name in STATISTICS})
            numbers |= {"minimum": found.minimum, "maximum": found.maximum, "std": found.std}
            rows.append(row | {f"{name}_ms": value for name, value in numbers.items()})
    return pd.DataFrame(rows, columns=None if rows else ["run", "stage"]).set_index(["run", "stage"])


def differences(runs: OneOrMoreRuns) -> pd.DataFrame:
    """Compares the total latency of each run with that of the first one, as in the report.

    Returns:
        A row for each `run` but the first: `difference_ms` of the medians and their `ratio` with their 95 % intervals,
        `hedges_g`, `probability_lower` (that a frame is faster than one of the first run), `p_value` and `verdict`; these
        are NaN and empty where there are too few runs for a test.

    Raises:
        SkylaneError: a path is not the folder of a run.
    """
    logs = _logs(runs)
    if len(logs) < 2:  # A run and what it is compared with.
        raise ArgumentError("runs", runs, "give two runs or more: the others are compared with the first one")
    groups = [group for group in map(FrameGroup.of_run, logs) if len(group.results)]
    found = compare_totals(((groups[0], other) for other in groups[1:]), in_blocks=False)
    rows = [
        {
            "run": each.b,
            "baseline": each.a,
            **{f"{name}_ms": value for name, value in _cells(difference=each.difference).items()},
            **_cells(ratio=each.ratio),
            "hedges_g": each.hedges_g,
            "probability_lower": each.probability_b_lower,
            "p_value": each.p_value,
            "verdict": each.verdict,
        }
        for each in found
    ]
    return pd.DataFrame(rows, columns=None if rows else ["run"]).set_index("run")


def _logs(runs: OneOrMoreRuns) -> list[RunLog]:
    """Returns the logs of runs, under names that differ."""
    given = list_argument("runs", runs, "the folder of a run", Run)
    if not given:
        raise ArgumentError("runs", runs, "give the folder of a run, or a list of them")
    logs = [
        run.log if isinstance(run, Run) else load_run(path_argument("runs", run, "the folder of a run"))
        for run in given
    ]
    names = distinct_names([log.folder.resolve() for log in logs])
    return [replace(log, name=name) for log, name in zip(logs, names, strict=True)]


def _cells(**estimates: IntervalEstimate) -> dict[str, float]:
    """Returns values with the ends of their intervals: NAME, NAME_low and NAME_high."""
    return {
        f"{name}{end}": value
        for name, estimate in estimates.items()
        for end, value in (("", estimate.value), ("_low", estimate.low), ("_high", estimate.high))
    }

"""Streaming accuracy of a run, at the tick and for the tick (`modelling.evaluation.streaming`), beside the ceiling and holding.

Stored results and true labels are read from bags by their stamps, one message at a time.

accuracy = run_accuracy(load_run(folder), truth)
accuracy.at_tick.accuracy(), accuracy.ceiling.accuracy()
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from analysis.logs.run_log import RunLog
from analysis.statistics.description import IntervalEstimate
from analysis.streaming.comparisons import TruthComparison, comparison_for, named_topic
from analysis.streaming.tick_outputs import (
    OutputsByCamera,
    TickOutput,
    at_ticks,
    held_outputs,
    own_outputs,
    presented_outputs,
)  # fmt: skip
from modelling.evaluation.bag_images import EvaluationError
from modelling.evaluation.streaming import ScoredTicks
from rosbag_tools.messages.ros_types import MalformedMessageError, read_stamp
from rosbag_tools.reading.bag import Bag
from rosbag_tools.records import Message
from shared.errors import SkylaneError
from shared.messages.topics import result_topic
from shared.runlog.presented_log import HOLD, PRESENTED_NAME, OutputOrigin

T = TypeVar("T")


class StampedTopic(Generic[T]):
    """The readable messages of a topic by position. Reading them in order takes one pass over the bag."""

    def __init__(self, bag: Bag, topic: str, decode: Callable[[Message], T]) -> None:
        """Reads the stamps of all messages. `decode` may raise a SkylaneError."""
        self.topic = topic
        self._bag = bag
        self._decode = decode
        self.stamps_ns = [stamp_ns for stamp_ns, _ in self._messages()]
        self._first = {stamp_ns: index for index, stamp_ns in reversed(list(enumerate(self.stamps_ns)))}
        self._open: Iterator[tuple[int, Message]] = iter(())
        self._next = len(self.stamps_ns)
        self._last: tuple[int, T | None] = (-1, None)

    def find(self, stamp_ns: int) -> int | None:
        """Returns the position of the first message with a stamp; None if no message has it."""
        return self._first.get(stamp_ns)

    def read(self, position: int) -> T | None:
        """Returns the decoded message at a position; None if it cannot be decoded.

        Raises:
            EvaluationError: `decode` raised it, or the bag was changed in the meantime.
        """
        if self._last[0] != position:
            message = self._message(position)
            try:
                self._last = (position, self._decode(message))
            except EvaluationError:
                raise
            except SkylaneError:
                self._last = (position, None)
        return self._last[1]

    def _message(self, position: int) -> Message:
        if position < self._next:
            self._open, self._next = self._messages(), 0
        for _, message in self._open:
            self._next += 1
            if self._next > position:
                return message
        raise EvaluationError(f"{self._bag.path} changed while it was read: {self.topic} has fewer messages now")

    def _messages(self) -> Iterator[tuple[int, Message]]:
        """Yields the stamp and the message of every readable message."""
        for message in self._bag.messages({self.topic}):
            if isinstance(message, Message):
                try:
                    yield read_stamp(message), message
                except MalformedMessageError:
                    continue


def positions_of(frames: Sequence[tuple[int, int | None]], stamps_ns: Sequence[int]) -> dict[int, int]:
    """Returns the position of the stored result of each frame, which lacks the frames whose result is not stored.

    Both are in the same order. A drive that is played repeatedly has the same stamps again, so each result belongs to the
    first frame of its stamp after the frame of the result before.

    Args:
        frames: Sequence number and stamp of the frames with a result.
        stamps_ns: The stamps of the stored results.
    """
    rows: dict[int, list[int]] = {}
    for row, (_, stamp_ns) in enumerate(frames):
        if stamp_ns is not None:
            rows.setdefault(stamp_ns, []).append(row)
    positions: dict[int, int] = {}
    last = -1
    for position, stamp_ns in enumerate(stamps_ns):
        candidates = rows.get(stamp_ns, [])
        index = bisect_right(candidates, last)
        if index < len(candidates):
            last = candidates[index]
            positions[frames[last][0]] = position
    return positions


@contextmanager
def opened(path: Path, problem: str) -> Iterator[Bag]:
    """Opens a bag; `problem` is the beginning of the error message.

    Raises:
        EvaluationError: It is missing or cannot be read.
    """
    try:
        bag = Bag(path)
    except SkylaneError as error:
        raise EvaluationError(f"{problem}: {error}") from error
    with bag:
        yield bag


class StoredResults:
    """Reads stored results in the order of their frames."""

    def __init__(self, topics: Mapping[str, StampedTopic[Any]], positions: Mapping[str, Mapping[int, int]]) -> None:
        """`positions` has the position of the result of each frame on the topic of its camera."""
        self._topics = topics
        self._positions = positions

    def kept(self, camera: str, ticks: Sequence[TickOutput]) -> list[TickOutput]:
        """Returns the ticks of a camera whose result is stored."""
        positions = self._positions.get(camera, {})
        return [tick for tick in ticks if tick.source in positions]

    def read(self, camera: str, sequence: int) -> Any:
        """Returns the result of a frame; None if it is not stored or cannot be read."""
        position = self._positions.get(camera, {}).get(sequence)
        return None if position is None else self._topics[camera].read(position)


@contextmanager
def stored_results(folder: Path, comparison: TruthComparison, outputs: OutputsByCamera) -> Iterator[StoredResults]:
    """Opens the results that a run stored in `folder`; `outputs` has the frames with a result, under their own number.

    Raises:
        EvaluationError: The sink `bag` did not write there, or its bag cannot be read.
    """
    path = folder / comparison.stored
    if not path.exists():
        raise EvaluationError(
            f"{folder} holds no {comparison.stored}: streaming accuracy compares stored results, so play the run with "
            "--sink bag"
        )
    if len(set(map(result_topic, outputs))) < len(outputs):
        names = ", ".join(sorted(outputs))
        raise EvaluationError(f"two of the cameras {names} share a topic of results: play each in a run of its own")
    with opened(path, "the stored results cannot be read") as bag:
        topics: dict[str, StampedTopic[Any]] = {}
        positions: dict[str, dict[int, int]] = {}
        for camera, ticks in outputs.items():
            if name := named_topic(bag, f"{result_topic(camera)}/{comparison.result_topic}"):
                topics[camera] = StampedTopic(bag, name, comparison.read_result)
                frames = [(tick.sequence, tick.stamp_ns) for tick in ticks if tick.source is not None]
                positions[camera] = positions_of(frames, topics[camera].stamps_ns)
        yield StoredResults(topics, positions)


PRESENTED = "presented"  # The folder of a run with its outputs, as the sinks wrote them.
NO_LABELS = "no labels of its stamp"
_UNREADABLE = "its labels cannot be read"
_NOT_STORED = "its output is not stored"


@dataclass(frozen=True, slots=True)
class RunAccuracy:
    """The streaming accuracy of one run."""

    run: str
    presenter: str  # Empty for a run without one.
    truth: Path
    comparison: TruthComparison
    at_tick: ScoredTicks[
        Any
    ]  # At each tick, the newest output that was ready; without a presenter, and of `hold`, as `held`.
    for_tick: ScoredTicks[Any] | None  # The output made for each tick, whenever it was ready; None without a presenter.
    held: ScoredTicks[Any]  # At each tick, the newest result that had arrived, a worker's or the local model's.
    held_from_workers: ScoredTicks[Any] | None  # The same without those of the local model; None if it gave no result.
    ceiling: ScoredTicks[Any]  # Each result against the labels of its own frame, ignoring all delays.
    ticks: Sequence[TickOutput]  # All ticks with the output made for them, or without a presenter with that of `held`.
    scored: Sequence[TickOutput]  # The ticks of `at_tick`.
    after_due_ms: npt.NDArray[np.float64]  # Times after the ticks of `for_tick` at which their outputs were ready.
    unscored: Mapping[str, int]  # Ticks that could not be scored, by reason.
    note: str  # Which classes were compared; empty if the truth has those of the model.
    cautions: Sequence[str]  # Doubts about the numbers.

    @property
    def missing(self) -> dict[str, int]:
        """The number of ticks for which no output was made, by reason."""
        reasons = Counter(tick.reason.partition(":")[0] for tick in self.ticks if tick.origin is OutputOrigin.NONE)
        return dict(reasons.most_common())

    def interval(self, scores: ScoredTicks[Any], *, with_missing: bool = False) -> IntervalEstimate:
        """Returns the accuracy of ticks of this run, with its interval for this run."""
        return self.comparison.interval(scores, with_missing=with_missing)


def run_accuracy(run: RunLog, truth: Path, map_file: Path | None = None, *, warm_up: int = 0) -> RunAccuracy:
    """Scores the outputs of a run against the labels in the bag `truth`; `map_file` as in `comparison_for`.

    Ticks with a sequence number below `warm_up` are not scored; the ceiling has them, too.

    Raises:
        SkylaneError: The run has no stored results or does not name its classes, its task has no streaming accuracy, the
            bag cannot be read, or it has no labels for any tick.
    """
    comparison = comparison_for(run.manifest, run.folder, map_file)
    with ExitStack() as stack:
        own = own_outputs(run.frames)
        results = stack.enter_context(stored_results(run.folder, comparison, own))
        labels = stack.enter_context(opened(truth, "the true labels cannot be read"))
        scorer = _Scorer(run, labels, comparison)
        stored = {camera: results.kept(camera, ticks) for camera, ticks in own.items()}
        ceiling = scorer.score(stored, results)
        outputs = _since(warm_up, held_outputs(run.frames, stored))
        at_tick = held = scorer.score(outputs, results)
        from_workers = for_tick = None
        if any(tick.origin is OutputOrigin.LOCAL for ticks in own.values() for tick in ticks):
            remote = {camera: _remote(ticks) for camera, ticks in stored.items()}
            from_workers = scorer.score(_since(warm_up, held_outputs(run.frames, remote)), results).scores
        presenter = ""
        if (run.folder / PRESENTED_NAME).exists():
            presenter = _presenter_name(run)
            outputs = presented_outputs(run.folder)
            presented = stack.enter_context(stored_results(run.folder / PRESENTED, comparison, outputs))
            newest = {camera: at_ticks(ticks, ticks) for camera, ticks in outputs.items()}
            outputs = _since(warm_up, outputs)
            for_tick = scorer.score(outputs, presented)
            if presenter != HOLD:
                at_tick = scorer.score(_since(warm_up, newest), presented)
        ticks = [tick for rows in outputs.values() for tick in rows]
        scorer.check(at_tick, len(ticks))
        scorer.check(ceiling, ceiling.unscored.total() - ceiling.unscored[NO_LABELS])  # A few frames may have labels.
        cautions = [*scorer.cautions(ceiling.scores, at_tick, len(ticks)), *_not_stored(results, own)]
        untimed = sum(tick.source is not None and None in (tick.ready_ns, tick.due_ns) for tick in ticks)
        if untimed and presenter != HOLD:  # What is held is ready when it arrives.
            cautions.append(
                f"{untimed:,} outputs of {PRESENTED_NAME} have no due_ns or presented_ns, so that it is not known when they "
                "were ready: they count for their tick only, at no tick."
            )
    late_ms = np.array([tick.after_due_ms for tick in (for_tick.ticks if for_tick else ())], np.float64)
    return RunAccuracy(
        run=run.name,
        presenter=presenter,
        truth=truth,
        comparison=comparison,
        at_tick=at_tick.scores,
        for_tick=None if for_tick is None else for_tick.scores,
        held=held.scores,
        held_from_workers=from_workers,
        ceiling=ceiling.scores,
        ticks=ticks,
        scored=at_tick.ticks,
        after_due_ms=late_ms[np.isfinite(late_ms)],
        unscored=dict(at_tick.unscored.most_common()),
        note=comparison.note(),
        cautions=cautions,
    )


@dataclass(slots=True)
class _Scored:
    """Scores with their ticks, and the number of ticks that could not be scored by reason."""

    scores: ScoredTicks[Any]
    ticks: list[TickOutput] = field(default_factory=list)
    unscored: Counter[str] = field(default_factory=Counter)


class _Scorer:
    """Scores outputs of a run against the labels in a bag."""

    def __init__(self, run: RunLog, bag: Bag, comparison: TruthComparison) -> None:
        """Finds the topics with the labels of the run's cameras.

        Raises:
            EvaluationError: There is none.
        """
        self._run = run
        self._bag = bag
        self._comparison = comparison
        self._truths: dict[str, StampedTopic[Any]] = {}
        suffix = comparison.truth_topic
        wanted = [str(camera) for camera in run.frames["camera"].unique()]
        for camera in wanted:
            if name := named_topic(bag, f"{result_topic(camera)}/{suffix}"):
                self._truths[camera] = StampedTopic(bag, name, comparison.read_truth)
                comparison.look_at(bag, camera, name)
        if not wanted:
            raise EvaluationError(f"{run.folder} has no frames, so there is nothing to compare with {bag.path}")
        if not self._truths:
            found = [topic.name for topic in bag.topics if topic.name.endswith(f"/{suffix}")]
            others = f"; it has them on {', '.join(found)}, which belong to another camera" if found else ""
            raise EvaluationError(
                f"{bag.path} holds no true {suffix} for the cameras of {run.name} (a topic "
                f"{result_topic(wanted[0])}/{suffix}){others}: give the bag that has them"
            )

    def score(self, outputs: OutputsByCamera, results: StoredResults) -> _Scored:
        """Scores outputs."""
        found = _Scored(self._comparison.no_scores())
        for camera, ticks in outputs.items():
            for tick in ticks:
                if reason := self._add(found.scores, camera, tick, results):
                    found.unscored[reason] += 1
                else:
                    found.ticks.append(tick)
        return found

    def _add(self, scores: ScoredTicks[Any], camera: str, tick: TickOutput, results: StoredResults) -> str:
        topic = self._truths.get(camera)
        position = None if topic is None or tick.stamp_ns is None else topic.find(tick.stamp_ns)
        if topic is None or position is None:
            return NO_LABELS
        truth = topic.read(position)
        if truth is None:
            return _UNREADABLE
        result = None if tick.source is None else results.read(camera, tick.source)
        if result is None and tick.source is not None:
            return _NOT_STORED
        if not (problem := self._comparison.problem(truth, result)):
            scores.add(truth, result, origin=tick.origin, age_ns=tick.age_ns, drive=self._run.name)
        return problem

    def check(self, found: _Scored, ticks: int) -> None:
        """Raises an EvaluationError if no tick could be scored."""
        if found.ticks or not ticks:
            return
        topics = ", ".join(topic.topic for topic in self._truths.values())
        reason = next((each for each, _ in found.unscored.most_common() if each != NO_LABELS), NO_LABELS)
        hint = "is it the bag of another drive?" if reason == NO_LABELS else "give the bag that the run played"
        raise EvaluationError(
            f"{self._bag.path}: none of the {ticks} ticks of {self._run.name} can be compared with {topics}: {reason}; {hint}"
        )

    def cautions(self, ceiling: ScoredTicks[Any], scored: _Scored, ticks: int) -> list[str]:
        """Returns why the accuracy may not be that of the run.

        Raises:
            EvaluationError: All classes in the bag are unknown to the model.
        """
        found = self._comparison.cautions()
        if without := scored.unscored.total():
            listed = "; ".join(f"{reason}: {count:,}" for reason, count in scored.unscored.most_common())
            found.append(f"{without:,} of {ticks:,} ticks are not scored. {listed}.")
        source = self._run.manifest.get("source")
        played = source.get("sha256") if isinstance(source, Mapping) and source.get("kind") == "bag" else None
        if played and played != self._bag.sha256:
            text = (
                f"The run played another bag than {self._bag.path} (its SHA-256 differs), and labels are found by their "
                "stamps alone: if the bag shows another drive, all numbers here are wrong."
            )
            if not math.isnan(accuracy := ceiling.accuracy()):
                text += f" The ceiling of {accuracy:.3f} must be near the accuracy that the model usually has."
            found.append(text)
        return found


def _presenter_name(run: RunLog) -> str:
    """Returns the kind of the run's presenter."""
    presenting = run.manifest.get("presenting")
    kind = presenting.get("kind") if isinstance(presenting, Mapping) else None
    return str(kind or "a presenter")


def _since(sequence: int, outputs: OutputsByCamera) -> OutputsByCamera:
    return {camera: [tick for tick in ticks if tick.sequence >= sequence] for camera, ticks in outputs.items()}


def _remote(ticks: Sequence[TickOutput]) -> list[TickOutput]:
    """Returns the results that are not the local model's."""
    return [tick for tick in ticks if tick.origin is not OutputOrigin.LOCAL]


def _not_stored(results: StoredResults, own: OutputsByCamera) -> list[str]:
    """Returns a caution if results are missing in the bag of the sink."""
    missing = sum(len(ticks) - len(results.kept(camera, ticks)) for camera, ticks in own.items())
    if not missing:
        return []
    text = (
        f"{missing:,} results of the run are not in the bag of its sink, which keeps the order of the frames and leaves out "
        "a result that comes after that of a later frame; holding and the ceiling are computed without them."
    )
    return [text]

"""The fusion of two detections: which share of their boxes is right, by label, score and age."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge.presenting.fuse import fused_detections, score_range
from edge.presenting.fusion_table import SCORES, FusionTable, JudgedAge
from edge.presenting.warp import moved_detections
from modelling.evaluation.average_precision import HEADLINE_SIZE, BoxMatcher
from modelling.fusion.recording import AgedResult
from shared.imaging.boxes import to_target
from shared.imaging.geometry import Geometry
from shared.messages.results import Detections

Shares = npt.NDArray[np.float32]

_PRIOR_BOXES = 2.0  # Weight of a score's own value, for ranges with few boxes.


class BoxCounts:
    """Boxes by label and score, and those of them that match a true box."""

    def __init__(self, ages: int, names: Sequence[str]) -> None:
        self.ticks = np.zeros(ages, np.int64)
        self._labels = len(names)
        self._remote = np.zeros((ages, 2, self._labels, SCORES))  # Right boxes, all boxes.
        self._local = np.zeros((2, self._labels, SCORES))

    def add(self, drive: int, each: AgedResult) -> None:
        """Adds the boxes of a tick."""
        del drive  # All boxes count alike.
        plan, truth = each.now.tick.geometry, each.now.truth
        moved = moved_detections(each.source.remote, each.motion, plan)
        for found, counts in ((moved, self._remote[each.age]), (each.now.local.result, self._local)):
            matcher = BoxMatcher(self._labels, HEADLINE_SIZE)
            matcher.add(_in_input(found, plan), *truth)
            for label in range(self._labels):
                scores, hits = matcher.scored(label)
                ranges = score_range(scores)
                counts[0, label] += np.bincount(ranges[hits], minlength=SCORES)
                counts[1, label] += np.bincount(ranges, minlength=SCORES)
        self.ticks[each.age] += 1

    def arrays(self, ages: Sequence[int]) -> dict[str, Shares]:
        """Returns the arrays of a table with the given ages."""
        return {"remote": np.stack([_shares(self._remote[age]) for age in ages]), "local": _shares(self._local)}


class BoxJudge:
    """Compares what presenters show on drives that the table was not made from."""

    def __init__(self, table: FusionTable, names: Sequence[str]) -> None:
        self._table = table
        self._labels = len(names)
        self._matchers: dict[int, dict[str, BoxMatcher]] = {}

    def add(self, each: AgedResult) -> None:
        """Adds a tick."""
        plan = each.now.tick.geometry
        moved, local = moved_detections(each.source.remote, each.motion, plan), each.now.local.result
        shown = {
            "local": local,
            "hold": each.source.remote,
            "warp": moved,
            "fuse": fused_detections(self._table, each.age, moved, local),
            "ceiling": each.now.remote,
        }
        matchers = self._matchers.setdefault(
            each.age, {name: BoxMatcher(self._labels, HEADLINE_SIZE) for name in shown}
        )
        for name, found in shown.items():
            matchers[name].add(_in_input(found, plan), *each.now.truth)

    def judged(self) -> tuple[JudgedAge, ...]:
        """Returns the mean average precision at each age that was met."""
        ages = self._table.header.ages_ms
        return tuple(
            JudgedAge(age_ms=ages[age], **{name: self._mean(matcher) for name, matcher in matchers.items()})
            for age, matchers in sorted(self._matchers.items())
        )

    def _mean(self, matcher: BoxMatcher) -> float:
        found = [
            matcher.metrics(label, 0.0).average_precision for label in range(self._labels) if matcher.truths[label]
        ]
        return round(float(np.mean(found)), 4) if found else 0.0


def _shares(counts: npt.NDArray[np.float64]) -> Shares:
    """Returns the share of right boxes by label and range of scores, which does not fall when the score rises."""
    own = (np.arange(SCORES) + 0.5) / SCORES
    shares = (counts[0] + _PRIOR_BOXES * own) / (counts[1] + _PRIOR_BOXES)
    return np.maximum.accumulate(shares, axis=1).astype(np.float32)


def _in_input(found: Detections, plan: Geometry) -> Detections:
    return Detections(to_target(found.boxes, plan), found.class_ids, found.scores)

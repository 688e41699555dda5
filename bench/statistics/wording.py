"""One sentence for a comparison, that claims no more than the samples can show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.statistics.certainty import are_clusters
from bench.statistics.description import Estimate

_NEGLIGIBLE = 0.01  # Of a's median: who would choose a part for less?


@dataclass(frozen=True, slots=True)
class Gap:
    """What the sentence is made from: b against a, milliseconds; `counts` and `runs`: of a and of b."""

    a: str
    b: str
    difference: Estimate
    median_a: float
    counts: tuple[int, int]
    effective: tuple[float, ...]  # Of a and of b; of the pairs, where they are paired.
    pairs: int | None  # None: not paired.
    runs: tuple[int, int]


def sentence(gap: Gap) -> str:
    """Say how far b lies from a, how surely, and what that does not show."""
    difference = gap.difference
    if not math.isfinite(difference.low):
        return _too_few(gap)
    digits = _digits(difference.high - difference.low)
    if difference.low <= 0 <= difference.high:
        span = " to ".join(f"{bound:.{digits}f}".replace("-", "−") for bound in (difference.low, difference.high))
        said = (
            f"Between {gap.a} and {gap.b} no difference could be shown at the median: the interval {span} ms "
            f"({_sample(gap)}) includes 0; {_not_shown(gap)}"
        )
    else:
        low, high = sorted((abs(difference.low), abs(difference.high)))
        said = (
            f"{gap.b} took {abs(difference.value):.{digits}f} ms {'longer' if difference.value > 0 else 'less'} than "
            f"{gap.a} at the median (95 % interval {low:.{digits}f} to {high:.{digits}f} ms, {_sample(gap)}); "
            f"the sample supports a difference{_size(gap)}"
        )
    return f"{said}{_reach(gap)}."


def _too_few(gap: Gap) -> str:
    counts = gap.counts if gap.pairs is None else (gap.pairs,)
    frames = "frames" if gap.pairs is None else "paired frames"
    worth = tuple(math.floor(effective) for effective in gap.effective)
    if worth == counts:
        return f"Too few {frames} ({_and(counts)}) to say how {gap.b} compares with {gap.a}."
    return (
        f"Too few independent {frames} to say how {gap.b} compares with {gap.a}: {_and(counts)} that follow one another "
        f"this closely are worth {_and(worth)}."
    )


def _sample(gap: Gap) -> str:
    """How much was compared."""
    frames = f"{_and(gap.counts)} frames" if gap.pairs is None else f"{gap.pairs} paired frames"
    a, b = gap.runs
    runs = f"{_and(gap.runs)} runs" if a != b else "one run each" if a == 1 else f"{a} runs each"
    return f"{frames}, {runs}"


def _size(gap: Gap) -> str:
    """Whether anyone would care."""
    share = abs(gap.difference.value) / gap.median_a
    if _furthest(gap) < _NEGLIGIBLE:
        return f", but a negligible one: {share * 100:.2f} % of the median"
    return f", but a small one: {share * 100:.1f} % of the median" if share < _NEGLIGIBLE else ""


def _not_shown(gap: Gap) -> str:
    if _furthest(gap) < _NEGLIGIBLE:
        return f"if there is one, it is below {_NEGLIGIBLE * 100:.0f} % of the median"
    return "this does not show that they are equal"


def _furthest(gap: Gap) -> float:
    """The end of the interval that is further from 0, as a share of a's median."""
    return max(abs(gap.difference.low), abs(gap.difference.high)) / gap.median_a


def _reach(gap: Gap) -> str:
    """For what runs the sentence holds, where it holds for these alone."""
    if are_clusters(*gap.runs):
        return ""
    if gap.runs == (1, 1):
        return ". This holds for these two runs: one run each cannot show how another would differ"
    return f". This holds for these runs: {_and(gap.runs)} cannot show how another would differ"


def _and(counts: Sequence[int]) -> str:
    """3 and 5; 100,000."""
    return " and ".join(f"{count:,}" for count in counts)


def _digits(width: float) -> int:
    """So many decimals that the width of an interval has two figures; at most three, a microsecond."""
    return min(3, max(0, 1 - math.floor(math.log10(width)))) if width > 0 else 3

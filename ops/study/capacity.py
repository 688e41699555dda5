"""Searches for the maximum number of vehicles that keeps latency and losses within their limits."""

from collections.abc import Callable
from dataclasses import dataclass

from analysis.study.measurement import RunMeasurement, run_metrics, tail_latency
from analysis.study.scenarios import CapacitySettings


@dataclass(frozen=True, slots=True)
class CapacityStep:
    """The result for one number of vehicles; `reason` names the exceeded limits and is empty if it fits."""

    vehicles: int
    p99_ms: float | None  # None for fewer than 100 answered frames.
    unanswered_share: float
    throughput_hz: float
    reason: str = ""

    @property
    def fits(self) -> bool:
        """True if this number of vehicles keeps the limits."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """The largest number of vehicles that fits, 0 if one vehicle does not fit, and the steps of the search."""

    vehicles: int
    steps: tuple[CapacityStep, ...]

    @property
    def is_bounded(self) -> bool:
        """True if a larger number did not fit; otherwise the search ended at the maximum it may try."""
        return any(not step.fits for step in self.steps)


def search_capacity(attempt: Callable[[int], CapacityStep], most: int) -> CapacityResult:
    """Doubles the number of vehicles until it does not fit, then bisects; at most 2·log2(most) + 2 attempts.

    The search assumes that every smaller number also fits. Near the limit, random variation can break this assumption;
    the repetitions of the study show by how much.
    """
    steps: list[CapacityStep] = []

    def fits(vehicles: int) -> bool:
        steps.append(attempt(vehicles))
        return steps[-1].fits

    fitting, failing, candidate = 0, most + 1, 1
    while candidate < failing:
        if fits(candidate):
            fitting = candidate
            candidate = min(2 * candidate, most) if candidate < most else failing
        else:
            failing = candidate
    while failing - fitting > 1 and failing <= most:
        middle = (fitting + failing) // 2
        if fits(middle):
            fitting = middle
        else:
            failing = middle
    return CapacityResult(fitting, tuple(steps))


def judge_step(run: RunMeasurement, vehicles: int, settings: CapacitySettings) -> CapacityStep:
    """Compares a run with the limits."""
    metrics = run_metrics(run, settings)
    (name, late_ms), share = tail_latency(run), run.unanswered_share
    reasons = []
    if late_ms is None:
        reasons.append("no frame was answered")
    elif late_ms > settings.limit_ms:
        reasons.append(f"{name} {late_ms:.1f} ms is over {settings.limit_ms:g} ms")
    if share > settings.unanswered_share:
        reasons.append(f"{share:.1%} unanswered is over {settings.unanswered_share:.1%}")
    return CapacityStep(vehicles, metrics["total_p99_ms"], share, metrics["throughput_hz"], "; ".join(reasons))

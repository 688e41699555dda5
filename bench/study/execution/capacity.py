"""Capacity: how many vehicles fit before latency or losses pass their limits."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.study.plan.scenarios import CapacitySettings
from bench.study.results.measurement import RunMeasurement, run_metrics, tail_latency


@dataclass(frozen=True, slots=True)
class CapacityStep:
    """A number of vehicles that was tried; `reason` says which limit it passed, and is empty where it fits."""

    vehicles: int
    p99_ms: float | None  # None for fewer than 100 answered frames.
    unanswered_share: float
    throughput_hz: float
    reason: str = ""

    @property
    def fits(self) -> bool:
        """Whether so many vehicles keep the limits."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """The greatest number of vehicles that was seen to fit, 0 if not even one does; and the steps to it."""

    vehicles: int
    steps: tuple[CapacityStep, ...]

    @property
    def is_bounded(self) -> bool:
        """Whether more were seen not to fit; otherwise the search ended at the most it may try."""
        return any(not step.fits for step in self.steps)


def search_capacity(attempt: Callable[[int], CapacityStep], most: int) -> CapacityResult:
    """Find how many vehicles fit: doubling until it fails, then bisection. Takes at most 2·log2(most) + 2 attempts.

    It supposes that what fits, fits with fewer too. Chance may break that near the limit: repetitions show by how much.
    """
    steps: list[CapacityStep] = []

    def fits(vehicles: int) -> bool:
        steps.append(attempt(vehicles))
        return steps[-1].fits

    fit, miss, wanted = 0, most + 1, 1
    while wanted < miss:
        if fits(wanted):
            fit = wanted
            wanted = min(2 * wanted, most) if wanted < most else miss
        else:
            miss = wanted
    while miss - fit > 1 and miss <= most:
        middle = (fit + miss) // 2
        if fits(middle):
            fit = middle
        else:
            miss = middle
    return CapacityResult(fit, tuple(steps))


def judge_step(run: RunMeasurement, vehicles: int, settings: CapacitySettings) -> CapacityStep:
    """Judge a run of so many vehicles by the limits."""
    told = run_metrics(run, settings)
    (name, late_ms), share = tail_latency(run), run.unanswered_share
    reasons = []
    if late_ms is None:
        reasons.append("no frame was answered")
    elif late_ms > settings.limit_ms:
        reasons.append(f"{name} {late_ms:.1f} ms is over {settings.limit_ms:g} ms")
    if share > settings.unanswered_share:
        reasons.append(f"{share:.1%} unanswered is over {settings.unanswered_share:.1%}")
    return CapacityStep(vehicles, told["total_p99_ms"], share, told["throughput_hz"], "; ".join(reasons))

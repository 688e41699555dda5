"""The numbers of the autoscalers, in a simulation of workers and of the algorithm of the HorizontalPodAutoscaler."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.rendering import kinds, needs_kubectl

pytestmark = needs_kubectl
SYNC_S, TOLERANCE = 15.0, 0.1  # The defaults of Kubernetes: time between two decisions, and deviation that is ignored.
START_S = 60.0  # From the decision until a new worker is ready.
INSTANCES, INFERENCE_S = 2, 0.16  # A worker as `road-small` on two cores, which answers 12.5 frames a second.
CAPACITY_HZ = INSTANCES / INFERENCE_S
SAMPLE_S = 5.0  # Scrape interval of Prometheus.
PHASES = ((900.0, 1.2), (5400.0, 4.0), (5400.0, 1.5))  # Seconds, and the load in workers.


@dataclass(slots=True)
class Worker:
    """A worker with a queue of any length: the times at which its instances become idle."""

    idle_s: list[float]

    def wait_s(self, now_s: float) -> float:
        """Returns the wait of a frame that arrives now, as the metric `skylane_queue_wait_seconds`."""
        return max(0.0, min(self.idle_s) - now_s)

    def put(self, now_s: float) -> None:
        """Adds a frame."""
        first = self.idle_s.index(min(self.idle_s))
        self.idle_s[first] = max(now_s, self.idle_s[first]) + INFERENCE_S


@dataclass(slots=True)
class Autoscaler:
    """The HorizontalPodAutoscaler that KEDA makes of a ScaledObject: stabilization windows and policies in pods."""

    spec: Mapping[str, Any]
    recommendations: list[tuple[float, int]] = field(default_factory=list)
    changes: list[tuple[float, int]] = field(default_factory=list)

    def decide(self, now_s: float, current: int, wanted: Sequence[int]) -> int:
        """Returns the number of workers from now on, given what each trigger wants."""
        desired = min(self.spec["maxReplicaCount"], max(self.spec["minReplicaCount"], *wanted))
        self.recommendations.append((now_s, desired))
        behavior = self.spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        up, down = behavior["scaleUp"], behavior["scaleDown"]
        lower = min(self._recent(now_s, up["stabilizationWindowSeconds"]))
        upper = max(self._recent(now_s, down["stabilizationWindowSeconds"]))
        desired = max(min(current, upper), lower) if lower > current else min(current, upper)
        change = desired - current
        (policy,) = (up if change > 0 else down)["policies"]
        done = sum(
            abs(each)
            for at_s, each in self.changes
            if now_s - at_s < policy["periodSeconds"] and (each > 0) == (change > 0)
        )
        allowed: int = max(0, policy["value"] - done)
        change = max(-allowed, min(allowed, change))
        if change:
            self.changes.append((now_s, change))
        return current + change

    def _recent(self, now_s: float, window_s: float) -> list[int]:
        return [number for at_s, number in self.recommendations if now_s - at_s <= window_s]


def wanted(total: float, target: float, current: int) -> int:
    """Returns the number of workers at which the average has its target; the current one if it nearly has."""
    return current if abs(total / (target * current) - 1) <= TOLERANCE else math.ceil(total / target)


def simulate(spec: Mapping[str, Any], *, with_cpu: bool) -> list[list[int]]:
    """Returns the number of workers at each decision, for each phase of the load; frames arrive at random times."""
    triggers = {
        each["type"]: float(each["metadata"].get("threshold", each["metadata"].get("value")))
        for each in spec["triggers"]
    }
    arrivals, autoscaler = random.Random(1), Autoscaler(spec)
    workers = [Worker([0.0] * INSTANCES) for _ in range(spec["minReplicaCount"])]
    starting: list[float] = []  # When the workers that were added become ready.
    waits: list[tuple[float, float]] = []
    frames: list[float] = []
    start_s, numbers = 0.0, []
    for seconds, load in PHASES:
        events = [(start_s + each * SYNC_S, "sync") for each in range(1, round(seconds / SYNC_S) + 1)]
        events += [(start_s + each * SAMPLE_S, "sample") for each in range(1, round(seconds / SAMPLE_S) + 1)]
        now_s = start_s
        while (now_s := now_s + arrivals.expovariate(load * CAPACITY_HZ)) < start_s + seconds:
            events.append((now_s, "frame"))
        phase = []
        for now_s, event in sorted(events):
            workers += [Worker([now_s] * INSTANCES) for ready_s in starting if ready_s <= now_s]
            starting = [ready_s for ready_s in starting if ready_s > now_s]
            if event == "frame":  # Vehicles choose the worker with the shortest wait.
                min(workers, key=lambda worker: min(worker.idle_s)).put(now_s)
                frames.append(now_s)
            elif event == "sample":
                waits.append((now_s, sum(worker.wait_s(now_s) for worker in workers)))
            else:
                current = len(workers) + len(starting)
                waits = [(at_s, each) for at_s, each in waits if now_s - at_s <= 30.0]
                frames = [at_s for at_s in frames if now_s - at_s <= SYNC_S]
                wait_s = sum(each for _, each in waits) / len(waits)
                busy = min(1.0, len(frames) / (SYNC_S * CAPACITY_HZ * len(workers)))
                numbers_wanted = [wanted(wait_s, triggers["prometheus"], current)]
                if with_cpu:
                    numbers_wanted.append(wanted(100.0 * busy * len(workers), triggers["cpu"], current))
                decided = autoscaler.decide(now_s, current, numbers_wanted)
                starting += [now_s + START_S] * (decided - current)
                del workers[max(decided, 1) :]  # A worker that drains answers what it has.
                phase.append(decided)
        numbers.append(phase)
        start_s += seconds
    return numbers


def spec_of_keda() -> Mapping[str, Any]:
    """Returns the specification of the ScaledObject."""
    (scaler,) = kinds("autoscaling/keda", "ScaledObject")
    spec: Mapping[str, Any] = scaler["spec"]
    return spec


def test_the_number_of_workers_settles() -> None:
    """The wait adds workers, the processors keep them; in the last third of each phase their number does not change."""
    phases = simulate(spec_of_keda(), with_cpu=True)
    assert [{*phase[-len(phase) // 3 :]} for phase in phases] == [{2}, {6}, {3}]


def test_the_wait_alone_would_make_the_number_swing() -> None:
    """The reason for the second trigger: with enough workers, the wait is too short to keep them."""
    phases = simulate(spec_of_keda(), with_cpu=False)
    assert max(len({*phase[-len(phase) // 3 :]}) for phase in phases) > 1


def test_both_autoscalers_have_the_same_limits() -> None:
    """The plain autoscaler is the second trigger of KEDA without the first one."""
    (plain,) = kinds("autoscaling/hpa", "HorizontalPodAutoscaler")
    keda = spec_of_keda()
    assert (plain["spec"]["minReplicas"], plain["spec"]["maxReplicas"]) == (
        keda["minReplicaCount"],
        keda["maxReplicaCount"],
    )
    (cpu,) = [each for each in keda["triggers"] if each["type"] == "cpu"]
    (metric,) = plain["spec"]["metrics"]
    assert str(metric["resource"]["target"]["averageUtilization"]) == cpu["metadata"]["value"]
    assert plain["spec"]["minReplicas"] >= 2

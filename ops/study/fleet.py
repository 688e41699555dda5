"""Runs the vehicles of a run: one `skylane edge play` process each."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from analysis.study.measurement import RunError
from edge.run import NOTHING_ANSWERED
from ops.processes.vehicle_process import VehicleProcess

_POLL_INTERVAL_S = 0.05


class Fleet(AbstractContextManager["Fleet"]):
    """The processes of vehicles `vehicle-1`, `vehicle-2`, …, which play the same source and start at the same time.

    A process takes about a second to start, so every vehicle reports when it is ready and waits for the others. Each
    vehicle writes its run into `folder/<name>` and its output into `folder/<name>.log`. Leaving the context kills the
    vehicles that are still running.
    """

    def __init__(self, count: int, source: Path, folder: Path, flags: Sequence[Sequence[str]]) -> None:
        """`flags` has the flags of `skylane edge play` for each vehicle, by default without sinks."""
        with ExitStack() as stack:
            self.vehicles = [
                stack.enter_context(
                    VehicleProcess(
                        source,
                        folder / f"vehicle-{number + 1}",
                        _flags(flags[number]),
                        waits_for_go=True,
                        awaits_ready=False,
                    )
                )
                for number in range(count)
            ]
            self._stack = stack.pop_all()

    @property
    def pids(self) -> Mapping[str, int]:
        """The process ids by the names of the vehicles."""
        return {vehicle.name: vehicle.pid for vehicle in self.vehicles}

    def wait(self, limit_s: float, check: Callable[[], None] = lambda: None) -> None:
        """Starts the vehicles once all are ready, and waits until all have ended.

        `check` is called several times per second and may raise an error to stop waiting.

        Raises:
            RunError: A vehicle failed (the message has the last line of its output), or `limit_s` has passed.
        """
        deadline_s = time.monotonic() + limit_s
        has_started = False
        while any(vehicle.is_running for vehicle in self.vehicles):
            for vehicle in self.vehicles:
                self._check(vehicle)
            check()
            if not has_started and all(vehicle.is_ready for vehicle in self.vehicles):
                has_started = True
                for vehicle in self.vehicles:
                    vehicle.go()
            if time.monotonic() >= deadline_s:
                raise RunError(f"took longer than run_limit_s, {limit_s:g} s: shorten the run, or increase the limit")
            time.sleep(_POLL_INTERVAL_S)
        for vehicle in self.vehicles:
            self._check(vehicle)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @staticmethod
    def _check(vehicle: VehicleProcess) -> None:
        """Raises RunError if a vehicle failed; a run without answers is a valid result of a study."""
        if vehicle.exit_code not in (None, 0, NOTHING_ANSWERED):
            raise RunError(f"{vehicle.name} failed with exit code {vehicle.exit_code}: {vehicle.log_tail}")


def _flags(given: Sequence[str]) -> list[str]:
    return [*given, *([] if "--sink" in given else ["--no-sinks"])]

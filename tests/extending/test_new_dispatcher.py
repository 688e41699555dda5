"""A dispatcher is added with one file, this one, and one line in the table: here the first worker by name."""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from edge.frame_record import GROUP, Assignment, FrameRecord
from edge.workers.dispatcher import DISPATCHERS, DispatcherEntry
from edge.workers.worker_directory import WorkerWatch
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from tests.pipeline.rig import HEIGHT, WIDTH, Vehicle, connect, count_outcomes, pictures

FRAMES = 8


class FirstDispatcher:
    """Sends all frames to the first worker by name."""

    def __init__(self, watch: WorkerWatch) -> None:
        self._watch = watch

    def choose(self, in_flight: Sequence[FrameRecord], now_ns: int, excluded: Collection[str] = ()) -> Assignment:
        """See Dispatcher."""
        del in_flight
        names = sorted(worker.name for worker in self._watch.online(now_ns) if worker.name not in excluded)
        return Assignment("first", names[0], 1) if names else GROUP


@pytest.mark.mosquitto
def test_a_new_dispatcher_chooses_the_workers_of_a_run(
    mosquitto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is chosen by the name in the table, and the log has this name."""
    monkeypatch.setitem(DISPATCHERS, "first", DispatcherEntry(f"{__name__}:FirstDispatcher", "edge", needs_loads=False))
    model = f"instant-{uuid4().hex[:6]}"
    with ExitStack() as stack:
        for name in "ba":
            settings = NullWorkerSettings(f"{name}-{model}", model, HEIGHT, WIDTH)
            stack.enter_context(NullWorkerProcess(mosquitto_url, settings))
        vehicle = Vehicle(
            connect(mosquitto_url),
            pictures(tmp_path, FRAMES),
            tmp_path / f"car-{model}",
            model=model,
            dispatch="first",
            retry=False,
        )
        known: set[str] = set()
        while len(known) < 2:
            known = {name for name, _ in vehicle.online()}
        rows = vehicle.play()
    assert count_outcomes(rows) == {("answered", ""): FRAMES}
    assert {(row["worker"], row["dispatch"]) for row in rows} == {(f"a-{model}", "first")}

"""Clock offsets of several workers; all processes of a machine share CLOCK_MONOTONIC, so the truth is known."""

from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from ops.link.link import Link
from ops.processes.null_worker import ClockReading, NullWorkerProcess, NullWorkerSettings
from shared.inference.model import Model
from shared.mqtt.bus import Bus
from shared.network.link_spec import LinkSpec
from shared.runlog.latency_log import Outcome
from tests.pipeline.clock_truth import clock_errors
from tests.pipeline.rig import HEIGHT, WIDTH, Rows, Vehicle, connect, pictures, worker


def _play_until_probed(bus: Bus, source: Path, out: Path, nodes: int = 1) -> Rows:
    """Plays until so many worker processes have echoed probes and then answered some frames."""
    vehicle = Vehicle(bus, source, out, loop=True, dispatch="group")  # Every worker gets frames.
    enough = 20 * nodes

    def tick() -> None:
        nonlocal enough
        if (
            sum(vehicle.clocks.last_echo(f"cloud/{name}/{session}").at_ns > 0 for name, session in vehicle.online())
            < nodes
        ):
            enough = vehicle.answered() + 20 * nodes
        elif vehicle.answered() >= enough:
            vehicle.stop()

    rows = vehicle.play(tick)
    return [row for row in rows if row["outcome"] == Outcome.ANSWERED]


@pytest.mark.mosquitto
def test_workers_of_one_group_have_separate_clock_offsets(mosquitto_url: str, tmp_path: Path) -> None:
    """The clocks of two processes are six seconds apart; each row uses that of the worker that answered it."""
    up_ms, down_ms = 12.0, 4.0
    spec = LinkSpec(delay_up_ms=up_ms, delay_down_ms=down_ms)
    port = int(mosquitto_url.rpartition(":")[2])
    with ExitStack() as stack:
        workers = {}
        for ahead_s, drift_ppm in ((3.0, 100.0), (-3.0, -100.0)):
            settings = NullWorkerSettings(f"clock-{uuid4().hex[:6]}", "tiny", HEIGHT, WIDTH)
            process = NullWorkerProcess(mosquitto_url, settings, clock_offset_s=ahead_s, clock_drift_ppm=drift_ppm)
            workers[settings.worker] = stack.enter_context(process)
        link = stack.enter_context(Link(spec, "127.0.0.1", port))
        rows = _play_until_probed(connect(link.url), pictures(tmp_path, 20), tmp_path / "car-clocks", nodes=2)
    here = ClockReading.take()
    for name, process in workers.items():
        own = [row for row in rows if row["worker"] == name]
        assert len(own) > 10
        assert {row["worker_session"] for row in own} == {process.session}
        for row in own:
            judged = clock_errors(row, here, process.clock)
            # Everything is on one machine, so readings of its clocks are exact to microseconds.
            assert max(abs(judged.offset_ms), abs(judged.uplink_ms), abs(judged.downlink_ms)) <= judged.bound_ms + 0.02
            assert judged.bound_ms >= (up_ms + down_ms) / 2 - 1e-3  # No exchange of messages can know more.


def test_clocks_are_probed_over_mqtt_3(embedded_url: str, model: Model, tmp_path: Path) -> None:
    """Probes need neither message properties nor shared subscriptions; here both nodes share a clock."""
    with worker(embedded_url, model):
        rows = _play_until_probed(connect(embedded_url), pictures(tmp_path, 20), tmp_path / "car")
    assert all(abs(float(row["clock_offset_ms"])) <= float(row["clock_error_ms"]) for row in rows)

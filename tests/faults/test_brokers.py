"""Broker faults: killed repeatedly, frozen, and back with what it retained for nodes that are gone."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from analysis.statistics.samples import spread
from ops.broker.mosquitto import MosquittoListener, write_config
from ops.link.link import LOOPBACK
from ops.processes.vehicle_process import VehicleProcess
from shared import clock
from shared.messages.topics import WORKER_STATUS
from shared.network.endpoint import free_port
from shared.runlog.latency_log import Outcome
from tests.support.faults.finding import Figure
from tests.support.faults.rig import Rig, answered_since, freeze, kill, resume
from tests.support.process_log import ProcessLog

_KILLS = 20
_RECONNECT_S = 3.0
_MOST_AWAY_S = 2.0  # Maximum random time until a killed broker is started again.
_RATE_HZ = 20.0
_FLAGS = ("--deadline-ms", "2000", "--loop")
_FROZEN_S = 30.0
_HEIGHT, _WIDTH = 200, 320  # 192 KB per frame: half a minute of frames is 115 MB.
_GROWTH_MB = 24.0  # Memory growth of each node: a few frames in progress, and what the allocator keeps.


@pytest.mark.faults(
    5,
    f"kill -9 the broker and start it again, {_KILLS} times",
    f"all nodes are connected again within {_RECONNECT_S:g} s (p95) of when it listens",
)
def test_killed_broker(rig: Rig) -> None:
    """Kills the broker of two workers and two vehicles repeatedly and restarts it after a random time."""
    broker = rig.broker()
    workers = [rig.worker(broker.url, f"worker-{number}") for number in (1, 2)]
    vehicles = [rig.vehicle(broker.url, f"vehicle-{number}", rate_hz=_RATE_HZ, flags=_FLAGS) for number in (1, 2)]
    nodes = [f"skylane-worker-{worker.name}" for worker in workers]
    nodes += [f"skylane-vehicle-{vehicle.name}" for vehicle in vehicles]
    reconnects_s: list[float] = []
    listening_ns = []
    for number in range(1, _KILLS + 1):
        rig.say(f"kill {number} of {_KILLS}")
        rig.wait_for_frames(vehicles, 5, Outcome.ANSWERED)
        kill(broker.pid)
        broker.stop()
        time.sleep(rig.chance.uniform(0, _MOST_AWAY_S))
        log = rig.folder / f"broker-{number:02d}.log"
        broker = rig.broker(port=broker.listener.port, log=log)
        listening_ns.append(clock.now_ns())
        reconnects_s += _reconnects_s(rig, log, nodes)
    rig.wait_for_frames(vehicles, 5, Outcome.ANSWERED)
    accounts = rig.end_vehicles()
    rig.conclude(
        accounts,
        Figure("broker killed", _KILLS),
        Figure("reconnect p95", spread(reconnects_s)["p95"], "s", most=_RECONNECT_S),
        Figure("reconnect worst", max(reconnects_s), "s"),
        Figure("first answer p95", spread(_first_answers_s(vehicles, listening_ns))["p95"], "s"),
        Figure("frames sent again", accounts.retried),
    )


@pytest.mark.faults(
    6,
    f"SIGSTOP the broker for {_FROZEN_S:g} s",
    f"no node's memory grows by more than {_GROWTH_MB:g} MB; frames are answered again afterwards",
)
def test_frozen_broker(rig: Rig) -> None:
    """Freezes the broker for half a minute while a vehicle sends large frames, and observes memory."""
    broker = rig.broker()
    worker = rig.worker(broker.url, height=_HEIGHT, width=_WIDTH)
    vehicle = rig.vehicle(broker.url, source=rig.pictures(40, _HEIGHT, _WIDTH), rate_hz=_RATE_HZ, flags=_FLAGS)
    with ProcessLog(rig.folder / "processes.csv", interval_s=0.25) as log:
        lives = [log.watch("vehicle", vehicle.name, vehicle.pid), log.watch("worker", worker.name, worker.pid)]
        rig.wait_for_frames([vehicle], 200, Outcome.ANSWERED)  # The memory use is then stable.
        before_s = time.monotonic()
        freeze(broker.pid)
        time.sleep(_FROZEN_S)
        resume(broker.pid)
        again_s = rig.wait_for_frames([vehicle], 1, Outcome.ANSWERED)
        rig.wait_for_frames([vehicle], 40, Outcome.ANSWERED)
    figures = [Figure("answered again after", again_s, "s")]
    for life in lives:
        before = max(value for at, value in zip(life.times_s, life.rss_bytes, strict=True) if at <= before_s)
        peak = life.peak("rss_bytes", since_s=before_s)
        grown_mb = None if peak is None else (peak - before) / 1e6
        figures.append(Figure(f"{life.role}'s memory grew by", grown_mb, "MB", most=_GROWTH_MB))
    rig.conclude(rig.end_vehicles(), *figures)


_REASON_S = 22.5  # As in scenario 4 for frozen workers.


@pytest.mark.faults(
    32,
    "kill -9 a worker together with its broker, which comes back with its retained messages",
    f"`skylane health` does not call the dead worker online, frames get their reason within {_REASON_S:g} s, and a worker "
    "that is started again answers",
)
def test_stale_online(rig: Rig) -> None:
    """Kills a worker and its broker at once, so that no last will is published, and starts the broker again."""
    stored = rig.folder / "stored"
    stored.mkdir()
    stored.chmod(0o777)  # Mosquitto gives up root's rights.
    config = write_config(rig.folder / "broker.conf", MosquittoListener(LOOPBACK, free_port()))
    text = config.read_text(encoding="utf-8").replace("persistence false", "persistence true")
    text += f"\npersistence_location {stored}/\nautosave_interval 1\nautosave_on_changes true\n"
    config.write_text(text, encoding="utf-8")
    broker = rig.broker(config=config)
    worker = rig.worker(broker.url)
    vehicle = rig.vehicle(broker.url, rate_hz=_RATE_HZ, flags=_FLAGS)
    rig.wait_for_frames([vehicle], 40, Outcome.ANSWERED)
    kill(broker.pid)
    kill(worker.pid)
    broker.stop()
    dead_ns = clock.now_ns()
    is_retained = WORKER_STATUS.of(worker=worker.name).encode() in (stored / "mosquitto.db").read_bytes()
    rig.broker(config=config)
    health = [sys.executable, "-P", "-m", "skylane", "health", "--broker", broker.url, "worker", worker.name]
    says = subprocess.run(health, check=False, capture_output=True, text=True)
    reason_s = rig.wait(lambda: _reasons(vehicle, dead_ns), "frames without a worker to have that reason")
    back_ns = clock.now_ns()
    rig.worker(broker.url)
    rig.wait_for_frames([vehicle], 40, Outcome.ANSWERED)
    answered_ns = answered_since(vehicle, back_ns)
    rig.conclude(
        rig.end_vehicles(),
        Figure("called online", int(says.returncode == 0), most=0),
        Figure("reason after", reason_s, "s", most=_REASON_S),
        Figure("answered again after", (min(answered_ns) - back_ns) / 1e9, "s"),
        remarks=(says.stderr.strip(),),
        broken=() if is_retained else ("the broker had not stored the status: the fault did not happen",),
    )


def _reasons(vehicle: VehicleProcess, since_ns: int) -> list[str]:
    """Returns the reasons of frames that were dropped for want of a worker."""
    rows = vehicle.rows(Outcome.DROPPED, due_ns=(since_ns, float("inf")))
    return [row["reason"] for row in rows if row["reason"].startswith("no_worker")]


def _reconnects_s(rig: Rig, log: Path, nodes: Sequence[str]) -> list[float]:
    """Returns the reconnect time of each node (by the prefix of its client id), from the broker's log."""
    waits: dict[str, float] = {}
    began_s = time.monotonic()

    def look() -> bool:
        output = log.read_text(encoding="utf-8", errors="replace")
        for node in nodes:
            if f" as {node}" in output:
                waits.setdefault(node, time.monotonic() - began_s)
        return len(waits) == len(nodes)

    rig.wait(look, "all nodes to be connected again")
    return list(waits.values())


def _first_answers_s(vehicles: Sequence[VehicleProcess], moments_ns: Sequence[int]) -> list[float]:
    """Returns the time from each moment to each vehicle's next answer."""
    waits_s = []
    for vehicle in vehicles:
        answered_ns = [int(row["t_mask_decoded_ns"]) for row in vehicle.rows(Outcome.ANSWERED)]
        for moment_ns in moments_ns:
            later_ns = [at_ns for at_ns in answered_ns if at_ns > moment_ns]
            waits_s += [(min(later_ns) - moment_ns) / 1e9] if later_ns else []
    return waits_s

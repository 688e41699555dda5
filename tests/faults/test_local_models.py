"""Faults of vehicles that do not send every frame: their local model fails, and their workers die or are cut off."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ops.processes.vehicle_process import VehicleProcess
from shared import clock
from shared.network.link_spec import LinkSpec
from shared.runlog.latency_log import Outcome
from shared.runlog.run_manifest import read_manifest
from tests.support.faults.finding import Figure
from tests.support.faults.hostile.trigger_pixels import MODEL as NASTY
from tests.support.faults.hostile.trigger_pixels import Mark
from tests.support.faults.models import make_local_model, marked_pictures
from tests.support.faults.rig import Rig, kill, open_frames

_S = 1e9
_THINK_MS = 20.0
_PICTURES = 120
_FAILING = {  # The frames that break the local model, by vehicle.
    "sometimes": {10: Mark.RAISE, 11: Mark.RAISE, 20: Mark.NAN, 30: Mark.RAISE},
    "always": dict.fromkeys(range(20, _PICTURES), Mark.RAISE),
}
_RAISES_UNTIL_OFF = 3
_HANGING = {20: Mark.HANG}
_END_S = 15.0  # Maximum time until a vehicle has ended after its last frame, although a thread of it hangs.
_SLOW_TURNS, _SLOW_RATE_HZ = 100_000, 100.0  # More work than the fastest core does in the time between two frames.
_SLOW_TIMEOUT = ("--local-timeout-ms", "20000")
_AWAY_S = 8.0
_RATE_HZ = 10.0
_FALLBACK_S = 2.5  # Maximum time until the first local answer after the workers were killed or the link was cut.
_WAITING = ("--queue", "8")  # Frames wait while a busy machine keeps the vehicle from taking them.
_MANY_PICTURES = 1000
_EVERYTHING = ("--gate", "mse", "--gate-threshold", "65025", "--reuse-ms", "60000")  # All frames count as similar.
_GATED_RATE_HZ, _REUSED_FRAMES, _CRASHES = 40.0, 20, 4
_GATED_THINK_MS = 100.0  # Time in which the worker can be killed while a frame is in flight.


@pytest.mark.faults(
    22,
    "the model on the vehicle raises or answers NaN, on single frames or on every frame",
    "a worker answers those frames; after three failures in a row the model is paused",
)
def test_local_model_fails(rig: Rig) -> None:
    """Plays images that break the local model to two vehicles with a cascade."""
    url, models = _started(rig)
    vehicles = {
        name: rig.vehicle(
            url, f"vehicle-{name}", source=marked_pictures(rig, name, marks, _PICTURES), flags=_cascade(models)
        )
        for name, marks in _FAILING.items()
    }
    for vehicle in rig.vehicles:
        vehicle.wait()
    accounts = rig.end_vehicles()
    local = {name: _local(vehicle) for name, vehicle in vehicles.items()}
    expected = {"sometimes": len(_FAILING["sometimes"]), "always": _RAISES_UNTIL_OFF}
    broken = [
        f"vehicle-{name} counted {local[name]['failures']} instead of {count} raised or more"
        for name, count in expected.items()
        if set(local[name]["failures"]) != {"raised"} or local[name]["failures"]["raised"] < count
    ]
    if local["sometimes"]["switched_off"]:
        broken.append("the model that failed on single frames was paused")
    if not local["always"]["switched_off"] or "was paused" not in vehicles["always"].output:
        broken.append("the model that failed on every frame was not paused, or the vehicle did not report it")
    unanswered = sum(_not_answered_by_worker(vehicles[name], marks) for name, marks in _FAILING.items())
    rig.conclude(
        accounts,
        Figure("marked frames not answered by a worker", unanswered, most=0),
        Figure("frames answered locally", accounts.outcomes[Outcome.ANSWERED_LOCALLY]),
        Figure("frames without a result", accounts.unanswered, most=0),
        broken=broken,
    )


@pytest.mark.faults(
    23,
    "the model on the vehicle never returns",
    "a worker answers that frame and all later ones; the vehicle ends in time, with exit code 0",
)
def test_local_model_hangs(rig: Rig) -> None:
    """Plays an image that makes the local model loop forever."""
    url, models = _started(rig)
    source = marked_pictures(rig, "hanging", _HANGING, _PICTURES)
    vehicle = rig.vehicle(url, source=source, flags=[*_cascade(models), "--local-timeout-ms", "500"])
    rig.wait(lambda: vehicle.closed() == _PICTURES, f"{_PICTURES} rows")
    began_s = time.monotonic()
    vehicle.wait()
    ended_s = time.monotonic() - began_s
    accounts = rig.end_vehicles()
    local = _local(vehicle)
    before = [row for row in vehicle.rows(Outcome.ANSWERED_LOCALLY) if int(row["frame_index"]) < min(_HANGING)]
    after = [row for row in vehicle.rows(Outcome.ANSWERED_LOCALLY) if int(row["frame_index"]) > min(_HANGING)]
    broken = []
    if local["failures"] != {"timed_out": 1} or "was paused" not in vehicle.output:
        broken.append(f"the vehicle counted {local['failures']} instead of 1 timed_out, or did not report it")
    if not before:
        broken.append("the local model answered nothing before it hung: the fault did not happen")
    rig.conclude(
        accounts,
        Figure("marked frames not answered by a worker", _not_answered_by_worker(vehicle, _HANGING), most=0),
        Figure("frames answered locally before", len(before)),
        Figure("frames answered locally afterwards", len(after), most=0),
        Figure("frames without a result", accounts.unanswered, most=0),
        Figure("ended after its last frame in", ended_s, "s", most=_END_S),
        broken=broken,
    )


@pytest.mark.faults(
    24,
    "the model on the vehicle is slower than the camera",
    "newer frames replace those that wait, which are counted; the vehicle reports both times",
)
def test_slow_local_model(rig: Rig) -> None:
    """Offers a vehicle more frames than its local model can look at."""
    url, models = _started(rig, turns=_SLOW_TURNS)
    flags = [*_cascade(models), *_SLOW_TIMEOUT]
    vehicle = rig.vehicle(url, pictures=_MANY_PICTURES, rate_hz=_SLOW_RATE_HZ, flags=flags)
    vehicle.wait()
    accounts = rig.end_vehicles()
    local, period_ms = _local(vehicle), 1e3 / _SLOW_RATE_HZ
    replaced = accounts.reasons[f"{Outcome.DROPPED}(window)"]
    broken = []
    if local["median_ms"] < period_ms:
        broken.append(f"the local model took {local['median_ms']:.1f} ms: it was as fast as the camera")
    if "a frame was due every" not in vehicle.output:
        broken.append("the vehicle did not report that its local model is too slow")
    rig.conclude(
        accounts,
        Figure("local model's median", local["median_ms"], "ms"),
        Figure("time between two frames", period_ms, "ms"),
        Figure("frames replaced by newer ones", replaced),
        Figure("frames answered locally", accounts.outcomes[Outcome.ANSWERED_LOCALLY]),
        Figure("frames without a result for another reason", accounts.unanswered - replaced, most=0),
        Figure("failures of the local model", sum(local["failures"].values()), most=0),
        broken=broken,
    )


@pytest.mark.faults(
    25,
    f"all workers are killed, or the link is cut, for {_AWAY_S:g} s, while a model is on the vehicle",
    f"it answers within {_FALLBACK_S:g} s, no frame is dropped for want of a worker; then workers answer again",
)
def test_local_fallback(rig: Rig) -> None:
    """Kills the worker of one vehicle and cuts the link of another; both have a local model as fallback."""
    models = make_local_model(rig)
    brokers = {name: rig.broker() for name in ("killed", "cut")}
    workers = {name: rig.worker(broker.url, f"worker-{name}", think_ms=_THINK_MS) for name, broker in brokers.items()}
    link = rig.link(brokers["cut"])
    urls = {"killed": brokers["killed"].url, "cut": link.url}
    flags = ("--local-model", NASTY, "--models", str(models), "--deadline-ms", "2000", *_WAITING)
    vehicles = {
        name: rig.vehicle(url, f"vehicle-{name}", pictures=_MANY_PICTURES, rate_hz=_RATE_HZ, flags=flags)
        for name, url in urls.items()
    }
    rig.wait_for_frames(rig.vehicles, 20, Outcome.ANSWERED)
    began_ns = clock.now_ns()
    rig.say("no worker and no link")
    kill(workers["killed"].pid)
    link.set(LinkSpec(reset_after_s=0))
    time.sleep(_AWAY_S)
    back_ns = clock.now_ns()
    link.set(LinkSpec())
    rig.worker(brokers["killed"].url, "worker-killed", think_ms=_THINK_MS)
    rig.wait_for_frames(rig.vehicles, 20, Outcome.ANSWERED)
    accounts = rig.end_vehicles()
    figures = []
    for name, vehicle in vehicles.items():
        meanwhile = vehicle.rows(due_ns=(began_ns, back_ns))
        local_ns = [int(row["t_due_ns"]) for row in meanwhile if row["outcome"] == Outcome.ANSWERED_LOCALLY]
        first_s = (min(local_ns) - began_ns) / _S if local_ns else None
        silent = [row for row in meanwhile if not Outcome(row["outcome"]).has_result and not int(row["attempts"])]
        figures += [
            Figure(f"{name}: first local answer after", first_s, "s", most=_FALLBACK_S),
            Figure(f"{name}: frames answered locally", len(local_ns)),
            Figure(f"{name}: frames neither sent nor answered", len(silent), most=0),
            Figure(f"{name}: frames sent and not answered", _sent_in_vain(meanwhile)),
        ]
    rig.conclude(accounts, *figures)


@pytest.mark.faults(
    26,
    f"kill -9 a worker {_CRASHES} times while a vehicle reuses results",
    "only results that have arrived are reused",
)
def test_gate_and_crash(rig: Rig) -> None:
    """Kills the worker of a vehicle whose gate reuses a result for at most twenty frames."""
    url = rig.broker().url
    worker = rig.worker(url, think_ms=_GATED_THINK_MS)
    flags = (*_EVERYTHING, "--reuse-frames", str(_REUSED_FRAMES), "--deadline-ms", "1000")
    vehicle = rig.vehicle(url, pictures=2 * _MANY_PICTURES, rate_hz=_GATED_RATE_HZ, flags=flags)
    for number in range(_CRASHES):
        rig.wait_for_frames([vehicle], 20, Outcome.REUSED)
        rig.say(f"crash {number + 1} of {_CRASHES}")
        rig.wait(lambda: open_frames(vehicle.folder), "a frame in flight")
        kill(worker.pid)
        rig.wait_for_frames([vehicle], 20)
        worker = rig.worker(url, think_ms=_GATED_THINK_MS)
    rig.wait_for_frames([vehicle], 20, Outcome.REUSED)
    accounts = rig.end_vehicles()
    rows = {row["sequence"]: row for row in vehicle.rows()}
    reused = [row for row in rows.values() if row["outcome"] == Outcome.REUSED]
    false = sum(not _had_arrived(rows.get(row["reused_sequence"]), row) for row in reused)
    in_vain = _sent_in_vain(rows.values())
    rig.conclude(
        accounts,
        Figure("results reused", len(reused)),
        Figure("results reused that had not arrived", false, most=0),
        Figure("frames sent and not answered", in_vain),
        Figure("frames dropped without a worker", accounts.reasons[f"{Outcome.DROPPED}(no_worker)"]),
        broken=() if in_vain else ("the worker held no frame when it was killed: the fault did not happen",),
    )


def _started(rig: Rig, *, turns: int = 0) -> tuple[str, Path]:
    """Starts a broker and a worker, and makes the local model; returns the broker's URL and the model repository."""
    models = make_local_model(rig, turns=turns)
    url = rig.broker().url
    rig.worker(url, think_ms=_THINK_MS)
    return url, models


def _cascade(models: Path) -> list[str]:
    """Returns the flags of a vehicle whose local model answers about half of the images of noise."""
    return ["--local-model", NASTY, "--models", str(models), "--cascade", "--c-low", "0.1", "--c-high", "0.9"]


def _local(vehicle: VehicleProcess) -> Mapping[str, Any]:
    """Returns what the manifest of a vehicle's run reports about its local model."""
    local: Mapping[str, Any] = read_manifest(vehicle.folder)["reuse"]["local"]
    return local


def _not_answered_by_worker(vehicle: VehicleProcess, indices: Mapping[int, Mark]) -> int:
    answered = {int(row["frame_index"]) for row in vehicle.rows(Outcome.ANSWERED)}
    return len(set(indices) - answered)


def _sent_in_vain(rows: Iterable[Mapping[str, str]]) -> int:
    """Counts the frames that were sent and got no result."""
    return sum(bool(int(row["attempts"])) and not Outcome(row["outcome"]).has_result for row in rows)


def _had_arrived(original: Mapping[str, str] | None, reused: Mapping[str, str]) -> bool:
    """Returns whether the result of a frame was present when a later frame got it."""
    if original is None or original["outcome"] != Outcome.ANSWERED:
        return False
    return int(original["t_mask_decoded_ns"]) <= int(reused["t_gated_ns"])

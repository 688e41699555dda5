"""Model faults: a graph that breaks the process that runs it, while another vehicle sends frames."""

import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from bench.faults.hostile.trigger_pixels import MODEL, Mark
from bench.faults.rig.rig import HEIGHT, WIDTH, Rig, RigError
from bench.faults.scenario import Figure, Finding, UnavailableError, scenario
from bench.harness.frame_accounting import longest_gap_ms
from bench.harness.process_log import children
from ops.processes.worker_process import Worker
from shared.imaging.opencv import cv2
from shared.runlog.latency_log import Outcome

_NASTY = {"raising": {8: Mark.RAISE, 16: Mark.NAN}, "ending": {6: Mark.HANG, 13: Mark.MEMORY, 20: Mark.CRASH}}
_ENDS_PROCESS = (Mark.HANG, Mark.MEMORY, Mark.CRASH)
_ATTEMPTS = 2
_WORKER_FLAGS = ("--isolate", "--isolate-hang-s", "4", "--isolate-memory-mb", "1024", "--max-wait-ms", "20")
_FLAGS = ("--model", MODEL, "--answer-timeout", "120")
_LIMIT_S = 300.0


@scenario(
    18,
    "nasty-model",
    "a TensorFlow model raises, answers NaN, hangs, takes all memory or crashes on some frames",
    "they are failed after two attempts at most; the other vehicle loses no frame",
)
def nasty_model(rig: Rig) -> Finding:
    """Two vehicles send frames that make a TensorFlow model raise, return NaN, hang, use all memory, and crash."""
    broker = rig.broker()
    worker = _worker(rig, broker.url)
    good = rig.vehicle(broker.url, "vehicle-good", pictures=60, flags=[*_FLAGS, "--loop", "--window", "2"])
    rig.wait_for_frames([good], 20, Outcome.ANSWERED)
    bad = {
        name: rig.vehicle(broker.url, f"vehicle-{name}", source=marked_pictures(rig, name, marks), flags=_FLAGS)
        for name, marks in _NASTY.items()
    }
    engines: set[int] = set()

    def have_ended() -> bool:
        engines.update(children(worker.pid, "cloud.isolation.engine_process"))
        return not any(vehicle.is_running for vehicle in bad.values())

    rig.say("frames that break the model")
    rig.wait(have_ended, "the vehicles whose frames break the model to have ended", _LIMIT_S)
    rig.wait_for_frames([good], 20, Outcome.ANSWERED)
    accounts = rig.end_vehicles()
    marked = {(name, index): mark for name, marks in _NASTY.items() for index, mark in marks.items()}
    fates = {(name, int(row["frame_index"])): row for name, vehicle in bad.items() for row in vehicle.rows()}
    not_failed = [mark.name for place, mark in marked.items() if fates[place]["outcome"] != Outcome.FAILED]
    poisonous = sum(mark in _ENDS_PROCESS for mark in marked.values())
    beside = [row for place, row in fates.items() if place not in marked and row["outcome"] != Outcome.ANSWERED]
    return Finding(
        accounts,
        Figure("marked frames not failed", len(not_failed), most=0),
        Figure("engine processes lost", len(engines) - 1, most=_ATTEMPTS * poisonous),
        Figure("other vehicle's frames lost", rig.accounts(good).unanswered, most=0),
        Figure("it waited at most", longest_gap_ms(good.rows()) / 1e3, "s"),
        Figure("bad vehicles' other frames refused", len(beside)),
        remarks=[f"{mark.name.lower()}: {fates[place]['reason']}" for place, mark in marked.items()],
        broken=[f"a frame marked {name} was not failed" for name in not_failed],
    )


def _worker(rig: Rig, url: str) -> Worker:
    """Starts a worker with the model, which is made first."""
    if find_spec("tensorflow") is None:
        raise UnavailableError("no TensorFlow: pip install 'skylane[cloud]'")
    models = make_model(rig, "bench.faults.hostile.nasty_graph")
    rig.say("starting the worker")
    log = rig.folder / "worker-1.log"
    return rig.enter(
        Worker(url, models=models, model=MODEL, name="worker-1", device="cpu", flags=_WORKER_FLAGS, log=log)
    )


def make_model(rig: Rig, module: str, *arguments: str) -> Path:
    """Runs a module that writes the model `nasty` for the rig's images; returns its model repository.

    Raises:
        RigError: the module failed.
    """
    models = rig.folder / "models"
    rig.say("making the model")
    command = [sys.executable, "-m", module, str(models), str(HEIGHT), str(WIDTH), *arguments]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    if made.returncode:
        raise RigError(f"the model could not be made: {made.stderr.strip().splitlines()[-1]}")
    return models


def marked_pictures(rig: Rig, name: str, marks: Mapping[int, Mark], count: int = 30) -> Path:
    """Creates a folder of images of noise, some with trigger pixels."""
    folder = rig.pictures(count, name=f"pictures-{name}")
    for index, mark in marks.items():
        path = str(folder / f"{index:05d}.png")
        picture = cv2.imread(path)
        assert picture is not None
        picture[0, 0] = mark.pixel[::-1]  # OpenCV writes BGR.
        cv2.imwrite(path, picture)
    return folder

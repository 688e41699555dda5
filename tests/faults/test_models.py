"""Model faults: a graph that breaks the process that runs it, while another vehicle sends frames."""

from importlib.util import find_spec

import psutil
import pytest

from analysis.logs.frame_accounting import longest_gap_ms
from ops.processes.worker_process import Worker
from shared.runlog.latency_log import Outcome
from tests.support.faults.finding import Figure
from tests.support.faults.hostile.trigger_pixels import MODEL, Mark
from tests.support.faults.models import make_model, marked_pictures
from tests.support.faults.rig import Rig, UnavailableError

_NASTY = {"raising": {8: Mark.RAISE, 16: Mark.NAN}, "ending": {6: Mark.HANG, 13: Mark.MEMORY, 20: Mark.CRASH}}
_ENDS_PROCESS = (Mark.HANG, Mark.MEMORY, Mark.CRASH)
_ATTEMPTS = 2
_CONFIG = "isolate: true\nisolate_hang_s: 4\nisolate_memory_mb: 1024\nmax_wait_ms: 20\n"
_FLAGS = ("--model", MODEL, "--answer-timeout", "120")
_LIMIT_S = 300.0


@pytest.mark.faults(
    18,
    "a TensorFlow model raises, answers NaN, hangs, takes all memory or crashes on some frames",
    "they are failed after two attempts at most; the other vehicle loses no frame",
)
def test_nasty_model(rig: Rig) -> None:
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
    rig.conclude(
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
    models = make_model(rig, "tests.support.faults.hostile.nasty_graph")
    rig.say("starting the worker")
    config, log = rig.folder / "cloud.yaml", rig.folder / "worker-1.log"
    config.write_text(_CONFIG, encoding="utf-8")
    flags = ("--config", str(config))
    return rig.enter(Worker(url, models=models, model=MODEL, name="worker-1", device="cpu", flags=flags, log=log))


def children(pid: int, module: str) -> set[int]:
    """Returns the ids of a process's children that run a module; empty if one of them ends during the search."""
    try:
        return {child.pid for child in psutil.Process(pid).children() if module in child.cmdline()}
    except psutil.Error:
        return set()

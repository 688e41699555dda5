"""The fault scenarios as a suite: its list, how a scenario fails, and that the rig notices a wrong mask."""

import json
import re
from importlib import import_module
from pathlib import Path

import cv2
import psutil
import pytest

from analysis.logs.frame_accounting import FrameAccounts
from ops.processes.vehicle_process import VehicleError
from tests.faults.soak import GROWTH_LIMITS, measure_growth
from tests.support.faults.finding import NO_MASKS, Figure, Finding
from tests.support.faults.rig import ROOT, Rig, freeze
from tests.support.process_log import ProcessHistory

pytest_plugins = ["pytester"]

_IMAGES = 12
_SUITE = """
import pytest
from analysis.logs.frame_accounting import FrameAccounts
from tests.support.faults.finding import Figure
from tests.support.faults.rig import RigError, UnavailableError

@pytest.mark.faults(2, "fault", "promise")
def test_breaks(rig):
    rig.conclude(FrameAccounts(masks_checked=1), Figure("leaks", 1, most=0))

@pytest.mark.faults(1, "fault", "promise")
def test_all_holds(rig):
    rig.conclude(FrameAccounts(masks_checked=3))

@pytest.mark.faults(3, "fault", "promise")
def test_away(rig):
    raise UnavailableError("it takes root")

@pytest.mark.faults(4, "fault", "promise")
def test_fails(rig):
    raise RigError("waited in vain")

@pytest.mark.faults(5, "fault", "promise")
def test_empty(rig):
    pass

@pytest.mark.faults(16, "fault", "promise")
def test_not_chosen(rig):
    raise AssertionError
"""


def test_the_document_lists_each_scenario_once_by_number_and_name() -> None:
    """Readers take the name or number for the command line from this table."""
    scenarios = sorted(
        (mark.args[0], name.removeprefix("test_").replace("_", "-"))
        for path in Path(__file__).parent.glob("test_*.py")
        for name, member in vars(import_module(f"tests.faults.{path.stem}")).items()
        for mark in getattr(member, "pytestmark", ())
        if mark.name == "faults"
    )
    assert [number for number, _ in scenarios] == list(range(1, len(scenarios) + 1))
    text = (ROOT / "docs" / "guides" / "faults.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d+) \| ([a-z-]+) \|", text, re.MULTILINE)
    assert [(int(number), name) for number, name in listed] == scenarios


@pytest.mark.mosquitto
def test_scenarios_are_chosen_and_each_has_its_verdict(pytester: pytest.Pytester) -> None:
    """A scenario that checked nothing fails; one that this machine cannot run does not."""
    pytester.makeconftest("from tests.faults.conftest import *")
    pytester.makeini("[pytest]\nmarkers =\n    faults(number, fault, promise): a fault scenario\naddopts = -m faults\n")
    pytester.makepyfile(_SUITE)
    chosen = [f"--only={name}" for name in ("1", "breaks", "3", "fails", "empty")]
    result = pytester.runpytest_inprocess("--seed=7", "--json=results.json", *chosen)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "seed 7" in result.stdout.str()
    scenarios = json.loads(Path("results.json").read_text(encoding="utf-8"))["scenarios"]
    assert [(each["name"], each["verdict"]) for each in scenarios] == [
        ("all-holds", "holds"), ("breaks", "FAILS"), ("away", "not available"), ("fails", "FAILS"), ("empty", "FAILS")
    ]  # fmt: skip
    assert scenarios[1]["failures"] == ["leaks 1 (at most 0) does not hold"]
    wrong = pytester.runpytest_inprocess("--only=all-hodls")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    assert "did you mean all-holds" in wrong.stderr.str()


def test_every_broken_promise_is_a_failure() -> None:
    """Every scenario would pass if one of them were left out."""
    accounts = FrameAccounts(read=2, masks_checked=1)
    accounts.outcomes["answered"] = 1
    accounts.unaccounted = 1
    figures = (Figure("leaks", 3, most=0), Figure("recovery", None, "ms", most=9), Figure("reported", 3))
    assert Finding(accounts, *figures, broken=("the worker is gone",)).failures == [
        "the worker is gone",
        "leaks 3 (at most 0) does not hold",
        "recovery none ms (at most 9) does not hold",
        "1 frames unaccounted for: 2 read = 1 answered",
    ]
    assert Finding(FrameAccounts()).failures == [NO_MASKS]
    assert Finding(FrameAccounts(masks_checked=1), Figure("leaks", 0, most=0)).failures == []


@pytest.mark.mosquitto
def test_a_run_without_a_fault_passes_and_a_changed_mask_fails(tmp_path: Path) -> None:
    """A rig that did not check the masks would report every label as right."""
    with Rig(tmp_path, seed=1) as rig:
        broker = rig.broker()
        worker = rig.worker(broker.url)
        vehicle = rig.vehicle(broker.url, pictures=_IMAGES)
        vehicle.wait()
        accounts = rig.end_vehicles()
        assert accounts.failures == []
        assert accounts.equation == f"{_IMAGES} read = {_IMAGES} answered"
        assert (accounts.masks_checked, accounts.masks_wrong) == (_IMAGES, 0)
        mask = next((vehicle.folder / "masks").rglob("*.png"))
        pixels = cv2.imread(str(mask), cv2.IMREAD_UNCHANGED)
        assert pixels is not None
        pixels[0, 0] = (pixels[0, 0] + 1) % 12
        cv2.imwrite(str(mask), pixels)
        assert rig.accounts(vehicle).failures == [f"1 of {_IMAGES} masks have a wrong label"]
        with pytest.raises(VehicleError, match=r"vehicle-2 ended with exit code 1: no broker at"):
            rig.vehicle("mqtt://127.0.0.1:1", "vehicle-2", pictures=1, flags=("--connect-timeout", "0.1"))
        freeze(worker.pid)  # The rig must end a stopped process too.
        pids = [broker.pid, worker.pid]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_leak_fails_a_soak() -> None:
    """The memory of a process grows by twice the limit per hour."""
    leak_per_s = 2 * GROWTH_LIMITS["rss_bytes"] / 3600
    at = range(0, 1800, 10)
    for slope, failures in ((leak_per_s, 1), (0.0, 0)):
        samples = [round(9e7 + slope * each) for each in at]
        history = ProcessHistory("vehicle", "one", 1, [*map(float, at)], samples, [9] * len(at), [14] * len(at))
        assert len(measure_growth("vehicle", [history], 1800.0).failures) == failures

"""The options, verdicts and result files of the fault scenarios, with a suite of small ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults.working_folder import place

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.mosquitto  # Without a Mosquitto broker no scenario runs.

_SUITE = """
import pytest
from analysis.logs.frame_accounting import FrameAccounts
from tests.support.faults.finding import Figure
from tests.support.faults.rig import Rig, RigError, UnavailableError

@pytest.mark.faults(2, "fault of breaks", "a promise")
def test_breaks(rig):
    rig.conclude(FrameAccounts(masks_checked=1), Figure("leaks", 1, most=0))

@pytest.mark.faults(1, "fault of all-holds", "a promise")
def test_all_holds(rig):
    accounts = FrameAccounts(read=3, masks_checked=3)
    accounts.outcomes["answered"] = 3
    rig.conclude(accounts, Figure("drawn", rig.chance.randrange(1000)), remarks=("a remark",))

@pytest.mark.faults(3, "fault of away", "a promise")
def test_away(rig):
    raise UnavailableError("it takes root")

@pytest.mark.faults(4, "fault of fails", "a promise")
def test_fails(rig):
    raise RigError("waited in vain")

@pytest.mark.faults(5, "fault of bug", "a promise")
def test_bug(rig):
    raise ZeroDivisionError("no | frames")

@pytest.mark.faults(16, "fault of empty", "a promise")
def test_empty(rig):
    pass

def test_of_the_rig():
    pass
"""
Faults = Callable[..., pytest.RunResult]


@pytest.fixture
def faults(pytester: pytest.Pytester) -> Faults:
    """Runs pytest over the small suite, in the folder of `pytester`."""
    pytester.makeconftest("from tests.faults.conftest import *")
    pytester.makeini("[pytest]\nmarkers =\n    faults(number, fault, promise): a fault scenario\naddopts = -m faults\n")
    pytester.makepyfile(_SUITE)
    return lambda *options, seed=7: pytester.runpytest_inprocess("--seed", str(seed), *options)


def _only(*names: str) -> list[str]:
    return [f"--only={name}" for name in names]


def _results(faults: Faults, *options: str, **keywords: Any) -> Any:
    faults("--json=new/results.json", *options, **keywords)
    return json.loads(Path("new/results.json").read_text(encoding="utf-8"))


def test_a_run_without_a_failure_exits_with_0_and_prints_its_seed(faults: Faults) -> None:
    """A scenario that this machine cannot run is reported, and is no failure."""
    result = faults(*_only("all-holds", "away"))
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, skipped=1, deselected=5)
    for text in ("3 read = 3 answered", "a remark", "not available", "it takes root", "seed 7"):
        assert text in result.stdout.str()


@pytest.mark.parametrize("name", ["breaks", "fails", "bug", "empty"])
def test_a_broken_promise_or_an_error_of_the_test_exits_with_1(faults: Faults, name: str) -> None:
    """The other scenarios run nevertheless. A scenario without a finding has checked nothing, so it fails too."""
    result = faults(*_only(name, "all-holds"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1, deselected=5)
    assert "FAILS" in result.stdout.str()
    assert "3 read = 3 answered" in result.stdout.str()


def test_scenarios_are_selected_by_name_or_number_and_run_in_order(faults: Faults) -> None:
    """The order is that of the numbers, a number is no part of another one, and a scenario that is named twice runs once."""
    names = [each["name"] for each in _results(faults, *_only("2", "1", "all-holds", "1"))["scenarios"]]
    assert names == ["all-holds", "breaks"]
    faults("-k", "all-holds").assert_outcomes(passed=1, deselected=6)


def test_the_error_for_an_unknown_scenario_names_the_nearest_one(faults: Faults) -> None:
    """`make faults` with a misspelt name must fail, and not pass without running a scenario."""
    result = faults(*_only("all-hodls"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "did you mean all-holds" in result.stderr.str()


def test_the_same_seed_repeats_a_scenario(faults: Faults) -> None:
    """A failure that depends on random values must be reproducible."""

    def drawn(seed: int) -> object:
        return _results(faults, *_only("all-holds"), seed=seed)["scenarios"][0]["figures"][0]["value"]

    assert drawn(7) == drawn(7) != drawn(8)


def test_the_json_file_has_one_entry_per_scenario(faults: Faults) -> None:
    """Scripts plot the figures, or compare them with an earlier run."""
    report = _results(faults, *_only("1", "2", "3", "4"))
    assert report["seed"] == 7
    assert [each["verdict"] for each in report["scenarios"]] == ["holds", "FAILS", "not available", "FAILS"]
    assert report["scenarios"][1]["failures"] == ["leaks 1 (at most 0) does not hold"]
    assert report["scenarios"][1]["figures"] == [{"name": "leaks", "value": 1, "unit": "", "most": 0, "holds": False}]
    assert report["scenarios"][2]["unavailable"] == "it takes root"
    assert report["scenarios"][3]["failures"] == ["waited in vain"]


def test_the_markdown_table_has_one_row_per_scenario(faults: Faults) -> None:
    """The table is copied into the documentation without changes."""
    faults("--markdown=new/table.md", *_only("all-holds", "breaks", "bug"))
    lines = Path("new/table.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and line[2].isdigit()]
    assert len(rows) == 3
    assert r"no \| frames" in rows[2]  # Otherwise the row would have one cell too many.
    assert "fault of breaks" in rows[1]
    assert rows[1].endswith("| FAILS |")
    assert "Seed 7" in lines[-1]


def test_list_runs_no_scenario(faults: Faults) -> None:
    """Listing the scenarios must not start or kill any process."""
    result = faults("--list")
    assert result.ret == pytest.ExitCode.OK
    assert "fault of fails" in result.stdout.str()
    assert not Path("runs").exists()


def test_an_unwritable_table_is_reported_before_any_scenario_runs(faults: Faults) -> None:
    """Otherwise the user would see the error only after twenty minutes."""
    Path("file").touch()
    result = faults("--markdown=file/table.md", *_only("all-holds"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not Path("runs").exists()


def test_two_runs_cannot_use_the_same_folder(faults: Faults) -> None:
    """The second run would delete the files of the first one."""
    with place(Path("runs/faults")):
        result = faults(*_only("all-holds"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "choose another --out" in result.stdout.str()
    assert faults(*_only("all-holds")).ret == pytest.ExitCode.OK


def test_without_mosquitto_no_scenario_runs(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every scenario would fail for the same reason, some of them after minutes."""
    monkeypatch.setattr("ops.broker.mosquitto.find_mosquitto", lambda: None)
    result = faults(*_only("all-holds"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "apt-get install mosquitto" in result.stdout.str()
    assert not Path("runs").exists()

"""`skylane bench faults`: its output, its exit codes, and the independence of the scenarios."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench.faults import cli
from bench.faults.rig.rig import Rig, RigError
from bench.faults.rig.working_folder import place
from bench.faults.scenario import Figure, Finding, Scenario, UnavailableError
from bench.harness.frame_accounting import FrameAccounts
from shared.errors import SkylaneError


def _holds(rig: Rig) -> Finding:
    accounts = FrameAccounts(read=3, masks_checked=3)
    accounts.outcomes["answered"] = 3
    return Finding(accounts, Figure("drawn", rig.chance.randrange(1000)), remarks=("a remark",))


def _breaks(_: Rig) -> Finding:
    return Finding(FrameAccounts(masks_checked=1), Figure("leaks", 1, most=0))


def _is_not_available(_: Rig) -> Finding:
    raise UnavailableError("it takes root")


def _fails(_: Rig) -> Finding:
    raise RigError("waited in vain")


def _has_a_bug(_: Rig) -> Finding:
    raise ZeroDivisionError("no | frames")


_ALL = {"holds": _holds, "breaks": _breaks, "away": _is_not_available, "fails": _fails, "bug": _has_a_bug}
pytestmark = pytest.mark.mosquitto  # Without a Mosquitto broker no scenario runs.


def _faults(monkeypatch: pytest.MonkeyPatch, folder: Path, names: Sequence[str], *flags: str, seed: int = 7) -> Result:
    scenarios = [
        Scenario(number, name, f"fault of {name}", "a promise", _ALL[name])
        for number, name in enumerate(names, start=1)
    ]
    monkeypatch.setattr(cli, "chosen", lambda _: scenarios)
    return CliRunner().invoke(cli.faults, ["--seed", str(seed), "--out", str(folder / "faults"), *flags])


def test_a_run_without_a_failure_exits_with_0_and_prints_its_seed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A scenario that this machine cannot run is reported, and is no failure."""
    result = _faults(monkeypatch, tmp_path, ["holds", "away"])
    assert result.exit_code == 0
    for text in ("3 read = 3 answered", "a remark", "not available", "it takes root", "seed 7"):
        assert text in result.output


@pytest.mark.parametrize("name", ["breaks", "fails", "bug"])
def test_a_broken_promise_or_an_error_of_the_bench_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """The following scenarios run nevertheless."""
    result = _faults(monkeypatch, tmp_path, [name, "holds"])
    assert result.exit_code == 1
    assert "FAILS" in result.output
    assert "3 read = 3 answered" in result.output


def test_the_same_seed_repeats_a_scenario(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A failure that depends on random values must be reproducible."""

    def drawn(seed: int) -> object:
        result = _faults(monkeypatch, tmp_path, ["holds"], "--json", seed=seed)
        return json.loads(result.stdout)["scenarios"][0]["figures"][0]["value"]

    assert drawn(7) == drawn(7) != drawn(8)


def test_json_output_has_one_entry_per_scenario(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Scripts plot the figures, or compare them with an earlier run."""
    result = _faults(monkeypatch, tmp_path, ["holds", "breaks", "away", "fails"], "--json")
    report = json.loads(result.stdout)
    assert report["seed"] == 7
    assert [each["verdict"] for each in report["scenarios"]] == ["holds", "FAILS", "not available", "FAILS"]
    assert report["scenarios"][1]["failures"] == ["leaks 1 (at most 0) does not hold"]
    assert report["scenarios"][1]["figures"] == [{"name": "leaks", "value": 1, "unit": "", "most": 0, "holds": False}]
    assert report["scenarios"][3]["failures"] == ["waited in vain"]


def test_the_markdown_table_has_one_row_per_scenario(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The table is copied into the documentation without changes."""
    path = tmp_path / "new" / "table.md"
    _faults(monkeypatch, tmp_path, ["holds", "breaks", "bug"], "--markdown", str(path))
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and line[2].isdigit()]
    assert len(rows) == 3
    assert r"no \| frames" in rows[2]  # Otherwise the row would have one cell too many.
    assert "fault of breaks" in rows[1]
    assert rows[1].endswith("| FAILS |")
    assert "Seed 7" in lines[-1]


def test_list_runs_no_scenario(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Listing the scenarios must not start or kill any process."""
    result = _faults(monkeypatch, tmp_path, ["fails"], "--list")
    assert result.exit_code == 0
    assert "fault of fails" in result.output
    assert not (tmp_path / "faults").exists()


def test_an_unwritable_table_is_reported_before_any_scenario_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise the user would see the error only after twenty minutes."""
    (tmp_path / "file").touch()
    result = _faults(monkeypatch, tmp_path, ["holds"], "--markdown", str(tmp_path / "file" / "table.md"))
    assert result.exit_code == 1
    assert "holds" not in result.output


def test_two_benches_cannot_use_the_same_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second bench would delete the files of the first while it is running."""
    with place(tmp_path / "faults"):
        result = _faults(monkeypatch, tmp_path, ["holds"])
    assert isinstance(result.exception, SkylaneError)
    assert "choose another --out" in str(result.exception)
    assert _faults(monkeypatch, tmp_path, ["holds"]).exit_code == 0


def test_without_mosquitto_no_scenario_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise every scenario would fail for the same reason, some of them after minutes."""
    monkeypatch.setattr("ops.broker.mosquitto.find_mosquitto", lambda: None)
    result = _faults(monkeypatch, tmp_path, ["holds"])
    assert isinstance(result.exception, SkylaneError)
    assert "apt-get install mosquitto" in str(result.exception)
    assert not (tmp_path / "faults").exists()

"""`skylane bench faults`: what it prints, what it ends with, and that one scenario's end is not the others'."""

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
    return Finding((Figure("drawn", rig.chance.randrange(1000)),), accounts, remarks=("a remark",))


def _breaks(_: Rig) -> Finding:
    return Finding((Figure("leaks", 1, most=0),), FrameAccounts(masks_checked=1))


def _is_not_available(_: Rig) -> Finding:
    raise UnavailableError("it takes root")


def _fails(_: Rig) -> Finding:
    raise RigError("waited in vain")


def _has_a_bug(_: Rig) -> Finding:
    raise ZeroDivisionError("no | frames")


_ALL = {"holds": _holds, "breaks": _breaks, "away": _is_not_available, "fails": _fails, "bug": _has_a_bug}
pytestmark = pytest.mark.mosquitto  # Without one nothing is played.


def _faults(monkeypatch: pytest.MonkeyPatch, folder: Path, names: Sequence[str], *flags: str, seed: int = 7) -> Result:
    scenarios = [
        Scenario(number, name, f"fault of {name}", "a promise", _ALL[name])
        for number, name in enumerate(names, start=1)
    ]
    monkeypatch.setattr(cli, "chosen", lambda _: scenarios)
    return CliRunner().invoke(cli.faults, ["--seed", str(seed), "--out", str(folder / "faults"), *flags])


def test_all_that_holds_ends_with_0_and_tells_its_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What this machine cannot do is said, and breaks nothing."""
    result = _faults(monkeypatch, tmp_path, ["holds", "away"])
    assert result.exit_code == 0
    for told in ("3 read = 3 answered", "a remark", "not available", "it takes root", "seed 7"):
        assert told in result.output


@pytest.mark.parametrize("name", ["breaks", "fails", "bug"])
def test_a_promise_that_breaks_or_a_bench_that_fails_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """And the scenarios behind it are played all the same."""
    result = _faults(monkeypatch, tmp_path, [name, "holds"])
    assert result.exit_code == 1
    assert "FAILS" in result.output
    assert "3 read = 3 answered" in result.output


def test_one_seed_plays_a_scenario_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fault that comes by chance must come back when it is looked for."""

    def drawn(seed: int) -> object:
        result = _faults(monkeypatch, tmp_path, ["holds"], "--json", seed=seed)
        return json.loads(result.stdout)["scenarios"][0]["figures"][0]["value"]

    assert drawn(7) == drawn(7) != drawn(8)


def test_json_tells_each_scenario_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For whoever draws it, or compares it with the last."""
    result = _faults(monkeypatch, tmp_path, ["holds", "breaks", "away", "fails"], "--json")
    told = json.loads(result.stdout)
    assert told["seed"] == 7
    assert [each["verdict"] for each in told["scenarios"]] == ["holds", "FAILS", "not available", "FAILS"]
    assert told["scenarios"][1]["failures"] == ["leaks 1 (at most 0) does not hold"]
    assert told["scenarios"][1]["figures"] == [{"name": "leaks", "value": 1, "unit": "", "most": 0, "holds": False}]
    assert told["scenarios"][3]["failures"] == ["waited in vain"]


def test_the_table_for_the_documents_has_a_row_a_scenario(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is pasted as it is."""
    path = tmp_path / "new" / "table.md"
    _faults(monkeypatch, tmp_path, ["holds", "breaks", "bug"], "--markdown", str(path))
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and line[2].isdigit()]
    assert len(rows) == 3
    assert r"no \| frames" in rows[2]  # Otherwise the row would have one cell too many.
    assert "fault of breaks" in rows[1]
    assert rows[1].endswith("| FAILS |")
    assert "Seed 7" in lines[-1]


def test_a_list_plays_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Asking what there is must kill no process."""
    result = _faults(monkeypatch, tmp_path, ["fails"], "--list")
    assert result.exit_code == 0
    assert "fault of fails" in result.output
    assert not (tmp_path / "faults").exists()


def test_a_table_that_cannot_be_written_is_told_before_anything_is_played(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not after twenty minutes."""
    (tmp_path / "file").touch()
    result = _faults(monkeypatch, tmp_path, ["holds"], "--markdown", str(tmp_path / "file" / "table.md"))
    assert result.exit_code == 1
    assert "holds" not in result.output


def test_two_benches_do_not_play_in_one_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second one would delete the runs of the first under its feet."""
    with place(tmp_path / "faults"):
        result = _faults(monkeypatch, tmp_path, ["holds"])
    assert isinstance(result.exception, SkylaneError)
    assert "choose another --out" in str(result.exception)
    assert _faults(monkeypatch, tmp_path, ["holds"]).exit_code == 0


def test_without_mosquitto_nothing_is_played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Twenty failures, some after minutes, would all say the same."""
    monkeypatch.setattr("shared.broker.mosquitto.find_mosquitto", lambda: None)
    result = _faults(monkeypatch, tmp_path, ["holds"])
    assert isinstance(result.exception, SkylaneError)
    assert "apt-get install mosquitto" in str(result.exception)
    assert not (tmp_path / "faults").exists()

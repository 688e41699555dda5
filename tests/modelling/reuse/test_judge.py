"""Tuned thresholds on other drives."""

from pathlib import Path

import pytest

from modelling.evaluation.bag_images import EvaluationSettings
from modelling.reuse.judge import judge
from modelling.reuse.replay import replay
from modelling.reuse.tune import TuneSettings, tune
from shared.reuse.tuning import TuningError
from tests.modelling.reuse.parts import EMPTY, VEHICLE, model_of, write_drive

REFERENCE = model_of("classification", lambda level: 0.98 if level > 100 else 0.02)
LOCAL = model_of("classification", lambda level: 0.6 if level > 165 else 0.97 if level > 100 else 0.03, "local")


def _drive(path: Path, *parts: tuple[int, int]) -> Path:
    return write_drive(path, [level for level, count in parts for _ in range(count)])


@pytest.fixture
def bags(tmp_path: Path) -> list[Path]:
    """A drive with two changes, and one without any."""
    return [
        _drive(tmp_path / "busy", (EMPTY, 4), (VEHICLE, 4), (VEHICLE + 30, 4)),
        _drive(tmp_path / "quiet", (EMPTY, 8)),
    ]


def test_each_use_is_judged_by_drive(bags: list[Path]) -> None:
    """The gate alone, the cascade alone, and both together, without any loss here."""
    replayed = replay(bags, REFERENCE, LOCAL, EvaluationSettings())
    tuning = tune(replayed, REFERENCE.card, LOCAL, TuneSettings(0.0)).tuning
    got = judge(replayed, tuning, LOCAL, "mse")
    assert list(got.by_use) == ["gate", "cascade", "both"]
    assert got.by_use["gate"]["busy"]["sent"] == pytest.approx(3 / 12)
    assert got.by_use["both"]["busy"]["sent"] == 0
    for drives in got.by_use.values():
        for values in drives.values():
            assert values["sent"] + values["reused"] + values["answered_locally"] == pytest.approx(1)
            assert values["loss"] == pytest.approx(0)
    assert got.mean("both", "sent").mean <= got.mean("gate", "sent").mean
    assert str(got.mean("both", "sent").low) == "nan", "an interval needs three drives"
    assert got.gate_ms is not None
    assert got.gate_ms > 0
    assert got.to_json()["both"]["drives"]["quiet"]["loss"] == 0
    assert got.table("drives").row_count == 9


def test_a_tuning_without_a_local_model_has_a_gate_only(bags: list[Path]) -> None:
    """And a method that it lacks is an error."""
    replayed = replay(bags, REFERENCE, None, EvaluationSettings())
    tuning = tune(replayed, REFERENCE.card, None, TuneSettings(0.0)).tuning
    assert list(judge(replayed, tuning, None, "mse").by_use) == ["gate"]
    with pytest.raises(TuningError, match="no threshold of pixels"):
        judge(replayed, tuning, None, "pixels")

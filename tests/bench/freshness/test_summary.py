"""The summary of all drives, its targets and its tables."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from bench.freshness.freshness_bench import FUSE, WARP, check_targets, merged, summarise, tables
from bench.freshness.replay import (
    AGES_MS,
    CEILING,
    EVERY,
    LINKS,
    LOCAL,
    OUTAGE,
    OUTAGE_S,
    RATE_HZ,
    Scores,
    age_case,
    outage_frames,
    strict,
)
from modelling.evaluation.streaming import StreamingScores
from shared.runlog.presented_log import HOLD
from shared.terminal_table import Table

NAMES = ("none", "road", "car")
WRONG = {CEILING: 0.1, LOCAL: 0.2, EVERY: 0.5, HOLD: 0.4, WARP: 0.2, FUSE: 0.15}
_FIRST = 5


def scores(drive: int, ticks: int, *, missing: range = range(0)) -> Scores:
    """Scores of all candidates, with a share of wrong pixels; `hold` has no output in some ticks."""
    generator = np.random.default_rng(drive)
    found = {name: StreamingScores(NAMES) for name in WRONG}
    for tick in range(ticks):
        truth = generator.integers(1, 3, (20, 30), dtype=np.uint8)
        draws = generator.random(truth.shape)
        for name, wrong in WRONG.items():
            mask = np.where(draws < wrong, 3 - truth, truth).astype(np.uint8)
            if tick in missing and name == HOLD:
                found[name].add(truth, None, origin="none", drive=str(drive))
            elif tick in missing and name == FUSE:
                found[name].add(truth, mask, origin="local", age_ns=0, drive=str(drive))
            else:
                found[name].add(truth, mask, origin="remote", age_ns=200_000_000, drive=str(drive))
    return found


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    """Four drives of every case, and an outage."""
    cases = (*map(age_case, AGES_MS), *LINKS)
    ages = [{name: scores(drive, 8) for case in cases for name in (case, strict(case))} for drive in range(4)]
    no_output = range(2 * RATE_HZ, OUTAGE_S[1] * RATE_HZ - _FIRST)
    outage = [
        {name: scores(drive, outage_frames() - _FIRST, missing=no_output) for name in (OUTAGE, strict(OUTAGE))}
        for drive in range(3)
    ]
    return summarise(merged(ages) | merged(outage))


def candidate(case: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The record of a candidate."""
    found: Mapping[str, Any] = case["candidates"][name]
    return found


def test_every_age_has_all_candidates_with_intervals(summary: dict[str, Any]) -> None:
    """All of them are scored over the same ticks."""
    assert [case["age_ms"] for case in summary["ages"]] == list(AGES_MS)
    for case in (*summary["ages"], *summary["links"]):
        assert case["ticks"] == 32
        for name in WRONG:
            estimate = candidate(case, name)["mean_iou"]
            assert estimate["low"] < estimate["value"] < estimate["high"]
            assert len(candidate(case, name)["by_drive"]) == 4
        assert case["margins"][FUSE][LOCAL]["value"] == pytest.approx(
            candidate(case, FUSE)["mean_iou"]["value"] - candidate(case, LOCAL)["mean_iou"]["value"], abs=1e-4
        )


def test_an_outage_is_described_by_the_second(summary: dict[str, Any]) -> None:
    """A tick without an output is wrong in the outage's accuracy; origins show what took over."""
    outage = summary["outage"]
    by_second = {each["from_s"]: each for each in outage["seconds"]}
    assert list(by_second) == list(range(16))
    held, fused = (
        [by_second[second]["mean_iou"][name] for second in range(OUTAGE_S[0] + 2, OUTAGE_S[1])] for name in (HOLD, FUSE)
    )
    assert max(held[1:]) == 0 < min(fused)
    assert by_second[8]["origins"][HOLD] == {"none": 30}
    assert by_second[8]["origins"][FUSE] == {"local": 30}
    assert sum(outage["within"][HOLD]["origins"].values()) == 3 * RATE_HZ * (OUTAGE_S[1] - OUTAGE_S[0])


def test_targets_are_met_or_missed_by_their_value(summary: dict[str, Any]) -> None:
    """Half of the distance between hold and the ceiling is what warp is to recover; fuse is to be the best."""
    found = {each["name"]: each for each in check_targets(summary)}
    assert len(found) == 5 + len(AGES_MS)
    assert all(each["is_met"] for each in found.values() if each["name"].startswith("fuse −"))
    at_200_ms = next(case for case in summary["ages"] if case["age_ms"] == 200)
    assert found["fuse without a link: share of ticks with an output"]["is_met"]
    shares = at_200_ms["recovered"]
    assert 0.5 < shares[WARP]["value"] < shares[FUSE]["low"] < shares[FUSE]["value"] < 1

    def verdicts(**high: float) -> set[bool | None]:
        margins = {name: {"value": -0.01, "low": -0.02, "high": high[name]} for name in (LOCAL, WARP)}
        ages = [{**case, "margins": {FUSE: margins}} for case in summary["ages"]]
        return {each["is_met"] for each in check_targets({"ages": ages}) if each["name"].startswith("fuse −")}

    assert verdicts(**{LOCAL: 0.01, WARP: 0.01}) == {None}  # The intervals have both signs.
    assert verdicts(**{LOCAL: 0.01, WARP: -0.005}) == {False}  # The better of two is chosen after the measurement.


def test_the_tables_name_what_is_missed(summary: dict[str, Any]) -> None:
    """A missed target cannot be overlooked."""
    found = check_targets(summary)
    found[0] |= {"is_met": False, "least": found[0]["value"] + 1}
    result = {
        **summary,
        "targets": found,
        "drives": [{}] * 4,
        "outage_drives": 3,
        "plan": {"inference_ms": 80.0},
    }
    parts = list(tables(result))
    lines = [part for part in parts if isinstance(part, str)]
    assert sum(isinstance(part, Table) for part in parts) == 6, "at the tick and for the tick: by age and link"
    assert sum("NOT met" in line for line in lines) == 1
    assert any("Dedelayed" in line for line in lines)

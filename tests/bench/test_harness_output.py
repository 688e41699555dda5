import math
from io import StringIO

import pytest
from rich.console import Console

from bench.harness import interval_verdict, span, target_line
from shared.terminal_table import Table, result_table


def _text(table: Table) -> list[list[str]]:
    output = StringIO()
    Console(file=output, width=80).print(table)
    return [line.replace("│", " ").split() for line in output.getvalue().splitlines() if "│" in line]


def test_cells_follow_the_format_of_their_column() -> None:
    """Numbers are formatted, texts are kept, and None leaves a cell empty."""
    columns = {"load": "<", "rate": ".2f", "share": ".1%", "n": ""}
    rows = _text(result_table("", columns, [("equal", 1.234, 0.5, 7), ("greedy", "–", None, 8)]))
    assert rows == [["equal", "1.23", "50.0%", "7"], ["greedy", "–", "8"]]


@pytest.mark.parametrize(
    ("by_round", "target", "has_verdict"),
    [([1.1, 1.2, 1.3], 1.0, True), ([1.0, 1.1, 1.3], 1.0, False), ([0.7, 0.9, 1.2], 1.0, False), ([0, 0, 0], 0, True)],
)
def test_there_is_no_verdict_if_the_rounds_spread_by_more_than_the_margin(
    by_round: list[float], target: float, *, has_verdict: bool
) -> None:
    """Another run could show the opposite."""
    assert ("not decided" not in target_line("share", by_round, target)) == has_verdict


def test_targets_and_spans_are_stated() -> None:
    """The target itself counts as met."""
    assert target_line("share", [0.95] * 3, 0.95) == "share: 0.950 (median of rounds; target 0.95, met)"
    assert target_line("share", [0.94, 0.94, 0.945], 0.95).endswith("NOT met)")
    assert span([0.5, 0.25, 1.0], 2) == "0.25 to 1.00"


def test_two_rounds_decide_nothing() -> None:
    """They may agree by chance."""
    assert target_line("share", [0.99, 0.99], 0.5).endswith("not decided: fewer than 3 rounds)")


@pytest.mark.parametrize(
    ("low", "high", "limits", "is_met"),
    [
        (0.6, 0.7, {"least": 0.6}, True),
        (0.6, 0.7, {"least": 0.65}, None),
        (0.6, 0.7, {"least": 0.71}, False),
        (-0.04, 0.15, {"most": 0.18}, True),
        (0.0, 0.26, {"most": 0.18}, None),
        (0.2, 0.26, {"most": 0.18}, False),
        (None, None, {"least": 0.1}, None),
        (math.nan, math.nan, {"least": 0.1}, None),
    ],
)
def test_an_estimate_meets_a_target_only_with_its_whole_interval(
    low: float | None, high: float | None, limits: dict[str, float], *, is_met: bool | None
) -> None:
    """The value alone would call half of all coin tosses a success."""
    assert interval_verdict(low, high, **limits) is is_met

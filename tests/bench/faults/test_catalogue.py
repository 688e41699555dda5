"""The catalogue: every scenario can be found, and none is another."""

import re
from pathlib import Path

import pytest

from bench.faults.catalogue import SCENARIOS, UnknownScenarioError, chosen


def test_the_scenarios_are_there_in_their_order() -> None:
    """A group that nobody registered would be green for ever."""
    assert [scenario.number for scenario in SCENARIOS] == list(range(1, 22))


def test_names_are_for_command_lines() -> None:
    """Without spaces, and each but once."""
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalpha() and name == name.lower() for name in names)


def test_the_document_tells_of_each_by_its_number_and_name() -> None:
    """A reader names a scenario as it stands there."""
    text = (Path(__file__).parents[3] / "docs" / "guides" / "faults.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| (\d+) \| ([a-z-]+) \|", text, re.MULTILINE)
    assert [(int(number), name) for number, name in told] == [(each.number, each.name) for each in SCENARIOS]


def test_scenarios_are_chosen_by_name_or_number_and_played_in_order() -> None:
    """As the table shows them."""
    ninth, first = (next(each for each in SCENARIOS if each.number == number) for number in (9, 1))
    assert chosen([]) == SCENARIOS
    assert chosen(["9", first.name, "9"]) == (first, ninth)


def test_a_scenario_that_is_not_there_is_told_with_the_nearest() -> None:
    """`make faults` with a slip of the pen must not play nothing and be green."""
    with pytest.raises(UnknownScenarioError, match="did you mean half-open"):
        chosen(["half-opne"])

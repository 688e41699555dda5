"""The catalogue of scenarios: it is complete, and every name and number is unique."""

import re
from pathlib import Path

import pytest

from bench.faults.catalogue import SCENARIOS, UnknownScenarioError, chosen


def test_all_scenarios_are_listed_in_order() -> None:
    """The scenarios of a group that is not registered would never run, so they could never fail."""
    assert [scenario.number for scenario in SCENARIOS] == list(range(1, 31))


def test_names_are_unique_and_can_be_typed_on_a_command_line() -> None:
    """A name has only lower case letters and hyphens."""
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalpha() and name == name.lower() for name in names)


def test_the_document_lists_each_scenario_by_number_and_name() -> None:
    """Readers take the name or number for the command line from this table."""
    text = (Path(__file__).parents[3] / "docs" / "guides" / "faults.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d+) \| ([a-z-]+) \|", text, re.MULTILINE)
    assert [(int(number), name) for number, name in listed] == [(each.number, each.name) for each in SCENARIOS]


def test_scenarios_are_chosen_by_name_or_number_and_run_in_order() -> None:
    """The order is that of the catalogue, and a scenario that is named twice runs once."""
    ninth, first = (next(each for each in SCENARIOS if each.number == number) for number in (9, 1))
    assert chosen([]) == SCENARIOS
    assert chosen(["9", first.name, "9"]) == (first, ninth)


def test_the_error_for_an_unknown_scenario_names_the_nearest_one() -> None:
    """`make faults` with a misspelt name must fail, and not pass without running a scenario."""
    with pytest.raises(UnknownScenarioError, match="did you mean half-open"):
        chosen(["half-opne"])

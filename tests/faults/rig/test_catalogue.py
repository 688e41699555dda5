"""The scenarios are complete, and every name and number is unique."""

import re
from importlib import import_module
from pathlib import Path

from tests.support.faults.rig import ROOT

_FOLDER = Path(__file__).parents[1]
_SCENARIOS = sorted(
    (mark.args[0], name.removeprefix("test_").replace("_", "-"))
    for path in _FOLDER.glob("test_*.py")
    for name, member in vars(import_module(f"tests.faults.{path.stem}")).items()
    for mark in getattr(member, "pytestmark", ())
    if mark.name == "faults"
)


def test_every_number_is_given_once() -> None:
    """`make faults ONLY=8` must not run two scenarios, or none."""
    assert [number for number, _ in _SCENARIOS] == list(range(1, len(_SCENARIOS) + 1))


def test_names_are_unique_and_can_be_typed_on_a_command_line() -> None:
    """A name has only lower case letters and hyphens."""
    names = [name for _, name in _SCENARIOS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalpha() and name == name.lower() for name in names)


def test_the_document_lists_each_scenario_by_number_and_name() -> None:
    """Readers take the name or number for the command line from this table."""
    text = (ROOT / "docs" / "guides" / "faults.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d+) \| ([a-z-]+) \|", text, re.MULTILINE)
    assert [(int(number), name) for number, name in listed] == _SCENARIOS

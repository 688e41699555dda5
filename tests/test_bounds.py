"""The table of bounds, docs/bounds.md, held to the code: its values, its flags, and that it leaves none out."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from skylane import skylane

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "bounds.md").read_text(encoding="utf-8")
PACKAGES = ("edge", "cloud", "shared", "rosbag_tools")
BROKERS = ("mosquitto/development.conf", "mosquitto/secured.conf")

# Constants named like bounds against which nothing outside can push.
NO_BOUNDS = {
    "cloud.models.engine_cache:_MOST": "what this host measured of its own engines",
    "edge.reliability.worker_stats:_MAX_SILENCE_MULTIPLIER": "a factor by which a vehicle waits longer itself",
    "shared.clock:MAX_DRIFT_PPM": "a fact about clocks",
    "shared.messages.control:_MAX_MS": "the range of a number",
    "shared.messages.frame_header:_MAX_MS": "the range of a number",
    "shared.imaging.image_codecs:MAX_QUALITY": "the range of a number",
    "shared.encoding.field_types:MAX_NS": "the range of a number",
    "shared.imaging.labels:MAX_LEVEL": "the range of a number",
    "shared.messages.node_status:MAX_AGE_MS": "the range of a number",
    "shared.messages.frame:_MAX_ATTEMPTS": "the range of a number",
    "shared.messages.frame:_MAX_BATCH": "the range of a number",
    "shared.messages.frame:_MAX_MS": "the range of a number",
    "shared.messages.node_status:_MAX_MS": "the range of a number",
    "shared.mqtt.name_guard:_MOST_LEEWAY_MS": "how exactly two ages are compared",
    "shared.messages.clock_probes:_MAX_SEQUENCE": "the range of a number",
}


class Row(NamedTuple):
    """A line of the table."""

    what: str
    bound: str
    set_by: str

    @property
    def value(self) -> int | None:
        """The number it tells; None where it tells a rule."""
        return int(self.bound.replace(",", "")) if re.fullmatch(r"[\d,]+", self.bound) else None

    @property
    def references(self) -> list[str]:
        """What it names of the code: `module:name`, `file.conf:key`."""
        return [each for each in re.findall(r"`([^`]+)`", self.set_by) if ":" in each]


def rows() -> Iterator[Row]:
    """Every row of every table."""
    for line in DOCUMENT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] != "what":
            yield Row(*cells[:3])


ROWS = list(rows())


def _values(reference: str) -> list[Any]:
    """What the code says; of both brokers where both are meant."""
    if reference.startswith("$broker:"):
        return [value for path in BROKERS for value in _values(reference.replace("$broker", path))]
    place, _, name = reference.partition(":")
    if place.endswith(".conf"):
        (found,) = re.findall(rf"^{name} (\d+)$", (ROOT / place).read_text(encoding="utf-8"), re.MULTILINE)
        return [int(found)]
    value: Any = import_module(place)
    for part in name.split("."):
        fields = getattr(value, "model_fields", {})
        if part in fields:
            value = fields[part].default
        elif dataclasses.is_dataclass(value) and part in (
            named := {each.name: each for each in dataclasses.fields(value)}
        ):
            value = named[part].default
        else:
            value = getattr(value, part)
    return [value]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_bound_has_the_value_that_the_table_tells(row: Row) -> None:
    """Whoever sizes a machine, or asks what a stranger can do, reads the table and not the code."""
    found = [value for reference in row.references for value in _values(reference)]
    assert found or row.value is None
    if row.value is not None:
        assert found == [row.value] * len(found)


@pytest.mark.parametrize("command", ["edge play", "cloud serve"])
def test_every_flag_that_the_table_names_is_there(command: str) -> None:
    """A flag that was renamed would leave its bound without a way to set it."""
    shown = CliRunner().invoke(skylane, [*command.split(), "--help"]).output
    named = {
        flag
        for row in ROWS
        for flag in re.findall(r"`(--[a-z-]+)`", row.set_by)
        if f"`skylane {command}`" in row.set_by
    }
    assert named
    for flag in named:
        assert re.search(rf"{flag}\b", shown), flag


def _named_like_bounds() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                targets = node.targets if isinstance(node, ast.Assign) else ()
                for name in (leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)):
                    if re.match(r"_?(MAX|MOST)(_|$)|[A-Z_]*_(MAX|MOST|LIMIT)(_|$)", name):
                        yield f"{module}:{name}"


def test_the_table_leaves_no_bound_out() -> None:
    """A bound that nobody lists is one that nobody checked."""
    told = {reference for row in ROWS for reference in row.references}
    found = set(_named_like_bounds())
    assert len(found) > 50
    assert found - told - NO_BOUNDS.keys() == set()
    assert NO_BOUNDS.keys() - found == set(), "these are gone"

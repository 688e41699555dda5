"""docs/reference/limits.md lists every limit in the code, with its value and flag."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from skylane.cli import skylane

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")
PACKAGES = ("edge", "cloud", "shared", "rosbag_tools")
BROKERS = ("mosquitto/development.conf", "mosquitto/secured.conf")

# Constants named like limits that no input can reach, with the reason.
NOT_LIMITS = {
    "cloud.models.engine_cache:_MAX_CHOICES": "this host's own measurements of engines",
    "edge.presenting.warp:_MOST_GROWTH": "the range of a number",
    "edge.reuse.opening:_MAX_ASPECT_DIFFERENCE": "the tolerance of a comparison",
    "edge.workers.worker_stats:_MAX_SILENCE_MULTIPLIER": "a factor for a vehicle's own waiting time",
    "shared.clock:MAX_DRIFT_PPM": "a fact about clocks",
    "shared.imaging.image_codecs:MAX_QUALITY": "the range of a number",
    "shared.messages.msgpack_reader:MAX_MS": "the range of a number",
    "shared.messages.msgpack_reader:MAX_NS": "the range of a number",
    "shared.imaging.labels:MAX_LEVEL": "the range of a number",
    "shared.messages.node_status:MAX_AGE_MS": "the range of a number",
    "shared.messages.frame:_MAX_ATTEMPTS": "the range of a number",
    "shared.messages.frame:_MAX_BATCH": "the range of a number",
    "shared.mqtt.name_guard:_MAX_AGE_TOLERANCE_MS": "the tolerance of a comparison",
    "shared.messages.clock_probes:_MAX_SEQUENCE": "the range of a number",
}


class LimitRow(NamedTuple):
    """A row of the page."""

    subject: str
    limit: str
    set_by: str

    @property
    def value(self) -> int | None:
        """The number of the limit; None for a rule in words."""
        return int(self.limit.replace(",", "")) if re.fullmatch(r"[\d,]+", self.limit) else None

    @property
    def references(self) -> list[str]:
        """References to the code, `module:name` or `file.conf:key`."""
        return [each for each in re.findall(r"`([^`]+)`", self.set_by) if ":" in each]


def rows() -> Iterator[LimitRow]:
    """Yields the rows of all tables."""
    for line in DOCUMENT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] != "what":
            yield LimitRow(*cells[:3])


ROWS = list(rows())


def _values(reference: str) -> list[Any]:
    """Returns the value in the code; one for each broker configuration for `$broker`."""
    if reference.startswith("$broker:"):
        return [value for path in BROKERS for value in _values(reference.replace("$broker", path))]
    location, _, name = reference.partition(":")
    if location.endswith(".conf"):
        (found,) = re.findall(rf"^{name} (\d+)$", (ROOT / location).read_text(encoding="utf-8"), re.MULTILINE)
        return [int(found)]
    value: Any = import_module(location)
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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.subject)
def test_the_page_has_the_values_of_the_code(row: LimitRow) -> None:
    """Operators size machines by the page."""
    found = [value for reference in row.references for value in _values(reference)]
    assert found or row.value is None
    if row.value is not None:
        assert found == [row.value] * len(found)


@pytest.mark.parametrize("command", ["edge play", "cloud serve"])
def test_every_flag_of_the_page_exists(command: str) -> None:
    """A renamed flag would leave a limit without a way to set it."""
    shown = CliRunner().invoke(skylane, [*command.split(), "--help-all"]).output
    named = {
        flag
        for row in ROWS
        for flag in re.findall(r"`(--[a-z-]+)`", row.set_by)
        if f"`skylane {command}`" in row.set_by
    }
    assert named
    for flag in named:
        assert re.search(rf"{flag}\b", shown), flag


def _names_like_limits() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                targets = node.targets if isinstance(node, ast.Assign) else ()
                for name in (leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)):
                    if re.match(r"_?(MAX|MOST)(_|$)|[A-Z_]*_(MAX|MOST|LIMIT)(_|$)", name):
                        yield f"{module}:{name}"


def test_the_page_lists_every_limit() -> None:
    """An unlisted limit would be unchecked."""
    listed = {reference for row in ROWS for reference in row.references}
    found = set(_names_like_limits())
    assert len(found) > 50
    assert found - listed - NOT_LIMITS.keys() == set()
    assert NOT_LIMITS.keys() - found == set(), "these no longer exist"

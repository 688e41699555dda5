"""The documentation compared with the code: generated pages, environment variables, log events, and the version."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared.logs import READY
from shared.messages.frame import Status
from shared.runlog.latency_log import Outcome

ROOT = Path(__file__).parents[1]
LOG_METHODS = {"info", "warning", "error", "exception", "log"}
OUTCOMES: dict[str, list[str]] = {  # By the expression that is part of an event's name; results are no events.
    "outcome.value": [each.value for each in Outcome if not each.has_result],
    "message.status.value": [each.value for each in Status if each is not Status.ANSWERED],
}
# The sections of the page of log events, by the package that logs them.
EVENT_SECTIONS = {"shared": "Events of every node", "cloud": "Events of a worker", "edge": "Events of a vehicle and of"}


@dataclass(frozen=True, slots=True)
class LogCall:
    """A statement that logs an event."""

    event: str
    levels: set[str]
    fields: set[str]  # With "" if the code computes some of their names.


def test_the_generated_pages_are_up_to_date(tmp_path: Path) -> None:
    """The pages of the command line and of the configuration keys must show what the code accepts."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, ROOT / "docs" / "generate_reference.py", tmp_path], check=True, env=environment)
    for page in tmp_path.iterdir():
        current = (ROOT / "docs" / "reference" / page.name).read_text(encoding="utf-8")
        assert current == page.read_text(encoding="utf-8"), f"{page.name} is out of date: run `make docs-reference`"


def test_the_results_are_those_of_the_stored_measurements(tmp_path: Path) -> None:
    """A number of a page that no longer belongs to its JSON file cannot be checked."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, ROOT / "docs" / "generate_results.py", tmp_path], check=True, env=environment)
    for page in tmp_path.iterdir():
        current = (ROOT / "docs" / "results" / page.name).read_text(encoding="utf-8")
        assert current == page.read_text(encoding="utf-8"), (
            f"docs/results/{page.name} is out of date: run docs/generate_results.py"
        )


def test_every_environment_variable_is_documented() -> None:
    """Users cannot find a variable that the page does not name."""
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    found = subprocess.run(
        ["git", "grep", "-hoE", r"\bSKYLANE_[A-Z_]*[A-Z]\b", "--", "*.py", "docker-compose.yml", ":!bench", ":!docs"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout.split()  # fmt: skip
    assert found
    assert {name for name in found if not re.search(rf"`{name}`", page)} == set()


def test_the_citation_names_this_version() -> None:
    """A paper that cites Skylane must name the version that it used."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    setup = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    assert f"version = {citation['version']}\n" in setup


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_stay_short(page: str) -> None:
    """New users do not read a page that is longer than three screens; hidden tables of contents are not shown."""
    shown = re.sub(r"```{toctree}.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(shown.splitlines()) <= 150


def keys(value: ast.AST, variables: dict[str, set[str]]) -> set[str]:
    """Returns the keys of the dictionaries in an expression and the fields of a bound logger; "" for a computed key."""
    found: set[Any] = set()
    for node in ast.walk(value):
        if isinstance(node, ast.Dict):
            found |= {ast.literal_eval(key) if isinstance(key, ast.Constant) else "" for key in node.keys}
        elif isinstance(node, ast.DictComp) or ast.unparse(node).startswith("dict("):
            found.add("")
        elif isinstance(node, ast.Name):
            found |= variables.get(node.id, set())
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "bind":
            found |= {keyword.arg for keyword in node.keywords if keyword.arg}
    return found


def events(name: ast.expr) -> list[str]:
    """Returns the events that the last positional argument of a log call may name."""
    if isinstance(name, ast.JoinedStr):
        prefix, value = name.values
        assert isinstance(value, ast.FormattedValue)
        return [f"{ast.literal_eval(prefix)}{each}" for each in OUTCOMES[ast.unparse(value.value)]]
    return [{"READY": READY}[name.id] if isinstance(name, ast.Name) else ast.literal_eval(name)]


def log_calls(path: Path) -> Iterator[LogCall]:
    """Yields the statements of a module that log an event; one whose name has a variable part, once for each value."""
    source = path.read_text(encoding="utf-8")
    if not re.search(r"import .*(get_logger|RateLimitedLogger)|getLogger\(\"skylane", source):
        return
    variables: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign):
            for target in getattr(node.targets[0], "elts", node.targets):
                if isinstance(target, ast.Name):
                    variables.setdefault(target.id, set()).update(keys(node.value, variables))
                elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    variables.setdefault(ast.unparse(target.value), set()).add(str(target.slice.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOG_METHODS:
            fields = keys(node.func.value, variables)
            for keyword in node.keywords:
                fields |= {keyword.arg} if keyword.arg else keys(keyword.value, variables)
            chosen = [part.attr for part in ast.walk(node.args[0]) if isinstance(part, ast.Attribute)]
            levels = chosen if node.func.attr == "log" else [node.func.attr.replace("exception", "error")]
            for event in events(node.args[-1]):
                yield LogCall(event, {level.lower() for level in levels}, fields - {"exc_info"})


@pytest.mark.parametrize("package", EVENT_SECTIONS)
def test_every_log_event_is_documented_with_its_level_and_fields(package: str) -> None:
    """Operators write alerts by this page; an event or a field that only the code or only the page has breaks them."""
    page = (ROOT / "docs" / "reference" / "logs.md").read_text(encoding="utf-8")
    section = page.partition(f"## {EVENT_SECTIONS[package]}")[2].partition("\n## ")[0]
    documented: dict[str, LogCall] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            names, levels, fields, _ = line.strip("|").split(" | ")
            for event in re.findall("`(.+?)`", names):
                assert event not in documented, f"{event} has two rows"
                documented[event] = LogCall(event, set(re.findall(r"\w+", levels)), set(re.findall(r"`(\w+)`", fields)))
    logged: dict[str, LogCall] = {}
    for call in (call for path in sorted((ROOT / package).rglob("*.py")) for call in log_calls(path)):
        known = logged.setdefault(call.event, call)
        logged[call.event] = LogCall(call.event, known.levels | call.levels, known.fields | call.fields)
    assert documented.keys() == logged.keys()
    for event, call in logged.items():
        assert documented[event].levels == call.levels, event
        computed = documented[event].fields - call.fields if "" in call.fields else set()
        assert documented[event].fields == call.fields - {""} | computed, event

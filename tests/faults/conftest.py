"""Runs the fault scenarios, the tests with the mark `faults`: `make faults`, or `pytest -m faults tests/faults`.

Each has a number, a fault and a promise; its name is that of the test, with hyphens. It ends with `rig.conclude`.
"""

import json
import secrets
import shutil
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from analysis.logs.frame_accounting import FrameAccounts
from bench.harness import machine_line
from ops.broker.mosquitto import MOSQUITTO_MISSING, find_mosquitto, mosquitto_version
from shared.errors import SkylaneError, suggestion
from shared.runtime.machine import machine
from shared.runtime.processes import interrupt_on_termination
from tests.support.faults.finding import Finding
from tests.support.faults.rig import Rig
from tests.support.faults.working_folder import place

_OVERLOAD_S = 300.0


@dataclass(slots=True)
class PlayedScenario:
    """A scenario, and its result once it has run."""

    number: int  # The number in docs/guides/faults.md.
    name: str
    fault: str  # Short description of the fault.
    promise: str  # Expected behaviour, in addition to complete accounting.
    seconds: float = 0.0
    finding: Finding | None = None
    unavailable: str = ""
    error: str = ""

    @property
    def failures(self) -> list[str]:
        """Promises that did not hold; an error of the test itself counts as one."""
        return [self.error] if self.error else self.finding.failures if self.finding else []

    @property
    def verdict(self) -> str:
        """The verdict in one word."""
        return "not available" if self.unavailable else "FAILS" if self.failures else "holds"

    @property
    def figures(self) -> str:
        """The figures as text, or the reason why they are missing."""
        if self.finding is None:
            return self.unavailable or self.error
        return ", ".join(str(figure) for figure in self.finding.figures)

    @property
    def ledger(self) -> str:
        """The accounting equation, and the counts that must be 0, if vehicles took part."""
        if self.finding is None or not self.finding.accounts.read:
            return ""
        found = self.finding.accounts
        return (
            f"{found.equation}; unaccounted {found.unaccounted}, accepted twice {found.accepted_twice}, "
            f"wrong labels {found.masks_wrong} of {found.masks_checked} masks"
        )

    def record(self) -> dict[str, Any]:
        """Returns the result as `--json` writes it."""
        finding = self.finding
        accounts = finding.accounts if finding else FrameAccounts()
        return {
            "number": self.number,
            "name": self.name,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
            "unavailable": self.unavailable,
            "failures": self.failures,
            "figures": [{**asdict(figure), "holds": figure.holds} for figure in finding.figures] if finding else [],
            "remarks": finding.remarks if finding else (),
            "ledger": accounts.equation if finding else "",
            "unaccounted": accounts.unaccounted,
            "accepted_twice": accounts.accepted_twice,
            "reasons": dict(accounts.reasons),
            "ignored_answers": dict(accounts.ignored),
            "masks_checked": accounts.masks_checked,
            "masks_wrong": accounts.masks_wrong,
        }

    def row(self) -> str:
        """Returns the result as a row of a Markdown table."""
        figures = " ".join(self.figures.split()).replace("|", "\\|")  # Errors can contain line breaks and pipes.
        return f"| {self.number} | {self.fault} | {self.promise} | {figures} | {self.ledger} | {self.verdict} |"


_SCENARIO = pytest.StashKey[PlayedScenario]()
_PLAYED = pytest.StashKey[list[PlayedScenario]]()
_SEED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options; they exist only if pytest is called with this folder or a part of it."""
    group = parser.getgroup("fault scenarios")
    group.addoption(
        "--only", action="append", metavar="SCENARIO", help="Run this scenario, by name or number (repeatable)."
    )
    group.addoption("--list", action="store_true", help="List the scenarios without running them.")
    group.addoption("--seed", type=int, help="Seed of random choices. [random, and printed]")
    group.addoption("--overload-s", type=float, default=_OVERLOAD_S, help="Seconds of the overload scenario. [300]")
    group.addoption("--out", type=Path, default=Path("runs/faults"), help="Folder of the runs. [runs/faults]")
    group.addoption("--json", type=Path, help="Write the results to this file as JSON.")
    group.addoption("--markdown", type=Path, help="Write a table of the results to this Markdown file.")


def pytest_configure(config: pytest.Config) -> None:
    """Draws the seed, and creates the files of results, so that one that cannot be written is reported at once."""
    seed = config.getoption("--seed", None)
    config.stash[_SEED] = secrets.randbits(32) if seed is None else seed
    config.stash[_PLAYED] = []
    try:
        _write_results(config)
    except OSError as error:
        raise pytest.UsageError(f"cannot write {error.filename}: {error.strerror}") from error


def pytest_report_header(config: pytest.Config) -> str:
    """Prints the seed."""
    return f"faults: seed {config.stash[_SEED]}"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Reads the mark of a scenario; `-k` accepts its name with hyphens too."""
    mark = item.get_closest_marker("faults")
    if mark is not None:
        name = item.name.removeprefix("test_").replace("_", "-")
        item.stash[_SCENARIO] = PlayedScenario(mark.args[0], name, *mark.args[1:])
        item.extra_keyword_matches.add(name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the scenarios by number, and selects those of `--only`."""
    items.sort(key=lambda item: item.stash[_SCENARIO].number if _SCENARIO in item.stash else 0)
    wanted = config.getoption("--only", None)
    if not wanted:
        return
    scenarios = [item.stash[_SCENARIO] for item in items if _SCENARIO in item.stash]
    names = {scenario.name for scenario in scenarios}
    for unknown in set(wanted) - names - {str(scenario.number) for scenario in scenarios}:
        raise pytest.UsageError(f"no scenario {unknown!r}{suggestion(unknown, names)}; --list shows all")
    chosen = [item for item in items if _SCENARIO in item.stash and _is_any(item.stash[_SCENARIO], wanted)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Lists the scenarios instead of running them, for `--list`."""
    if not session.config.getoption("--list", default=False):
        return None
    terminal = session.config.get_terminal_writer()
    for item in session.items:
        scenario = item.stash.get(_SCENARIO, None)
        if scenario is not None:
            terminal.line(f"{scenario.number:>2} {scenario.name}: {scenario.fault}\n   -> {scenario.promise}")
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fails a scenario that ends without a finding, because nothing was checked."""
    yield
    if _SCENARIO in item.stash:
        rig: Rig = item.funcargs["rig"]  # type: ignore[attr-defined]  # A scenario is a function.
        assert rig.finding is not None, "a scenario ends with rig.conclude()"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds a phase of a scenario (setup, call, teardown) to its result, and writes the results after the last one."""
    report = yield
    scenario = item.stash.get(_SCENARIO, None)
    if scenario is None:
        return report
    scenario.seconds += call.duration
    rig: Rig | None = item.funcargs.get("rig")  # type: ignore[attr-defined]  # As above.
    scenario.finding = rig.finding if rig else None
    if call.excinfo is not None and report.skipped:
        scenario.unavailable = str(call.excinfo.value)
    elif call.excinfo is not None and not (call.when == "call" and scenario.finding):
        error = call.excinfo.value
        text = "" if isinstance(error, SkylaneError) else f"the test failed: {type(error).__name__}: "
        scenario.error = f"{text}{error}"
    if call.when == "teardown":
        item.config.stash[_PLAYED].append(scenario)
        _write_results(item.config)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the figures of all scenarios, and how to repeat them."""
    played = config.stash[_PLAYED]
    if not played:
        return
    terminalreporter.section("fault scenarios")
    for scenario in played:
        remarks = scenario.finding.remarks if scenario.finding else ()
        terminalreporter.write_line(
            f"{scenario.number:>2} {scenario.name:<25} {scenario.verdict} {scenario.seconds:5.0f} s"
        )
        for line in (scenario.figures, scenario.ledger, *remarks):
            if line:
                terminalreporter.write_line(f"     {line}")
    seconds = sum(scenario.seconds for scenario in played)
    terminalreporter.write_line(f"seed {config.stash[_SEED]}; {seconds:.0f} s; {_machine()}")


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder of the runs, for this process alone; SIGTERM ends the scenarios as Ctrl-C does."""
    assert find_mosquitto(), MOSQUITTO_MISSING
    folder: Path = request.config.getoption("--out").absolute()
    with interrupt_on_termination(), place(folder):
        yield folder


@pytest.fixture
def rig(runs: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    """The rig of a scenario; its files stay in the folder `<number>-<name>`."""
    scenario = request.node.stash[_SCENARIO]
    folder = runs / f"{scenario.number:02d}-{scenario.name}"
    shutil.rmtree(folder, ignore_errors=True)
    with Rig(folder, request.config.stash[_SEED]) as rig:
        yield rig


@pytest.fixture
def overload_s(request: pytest.FixtureRequest) -> float:
    """The duration of the overload scenario in seconds."""
    seconds: float = request.config.getoption("--overload-s")
    return seconds


def _is_any(scenario: PlayedScenario, wanted: list[str]) -> bool:
    return scenario.name in wanted or str(scenario.number) in wanted


def _machine() -> str:
    mosquitto = find_mosquitto()
    return machine_line(machine(), f"Mosquitto {mosquitto_version(mosquitto)}" if mosquitto else None)


def _write_results(config: pytest.Config) -> None:
    """Writes the files of `--json` and `--markdown`.

    Raises:
        OSError: one of them cannot be written.
    """
    played, seed = config.stash[_PLAYED], config.stash[_SEED]
    as_json, markdown = config.getoption("--json", None), config.getoption("--markdown", None)
    if as_json is not None:
        result = {"seed": seed, "machine": machine(), "scenarios": [scenario.record() for scenario in played]}
        _write(as_json, json.dumps(result, indent=2))
    if markdown is not None:
        head = ["| | what is done | what must hold | figures | the ledger | |", "|---|---|---|---|---|---|"]
        rows = [scenario.row() for scenario in played]
        _write(markdown, "\n".join([*head, *rows, "", f"Seed {seed}; {_machine()}.", ""]))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

"""Prints the result of the scenario comparison."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from bench.harness.output import machine_line
from bench.peers.scenario_comparison.result import AGAINST, TESTED
from bench.peers.scenario_comparison.scenarios import SCENARIOS
from bench.report.output.number_format import NOTHING, number, probability
from bench.statistics.run_test import PAIRED
from shared.terminal_table import Table

_NOTES = (
    "first: the median of the runs' first calls that count. wrong: pixels of all masks, or bytes of all scores, against "
    "the direct call. CPU: 100 % is one core, the mean of the runs. MB: the most resident at a time, and at the end with "
    "what is shared divided. EUR: of 24 h of footage at 24 frames a second, at {price_per_hour} EUR an hour and this rate."
)
_DURATIONS = {
    "mean": "mean_ms",
    "p25": "p25_ms",
    "p50": "p50_ms",
    "p75": "p75_ms",
    "p95": "p95_ms",
    "first": "first_ms",
}


def show(result: Mapping[str, Any], console: Console) -> None:
    """Prints call times and resource usage per scenario, then the tests and the skipped servers."""
    for scenario, cells in result["scenarios"].items():
        if cells:
            console.print(_durations(result["model"], scenario, cells))
            console.print(_usage(scenario, cells))
    console.print(_NOTES.format(**result["plan"]), highlight=False)
    if result["tests"]:
        console.print(_tests(result["tests"]))
    for name, reason in result["skipped"].items():
        console.print(f"Skipped: {name}: {reason}", highlight=False, markup=False)
    console.print("; ".join(result["versions"].values()), highlight=False)
    console.print(machine_line(result["machine"]), highlight=False)


def _durations(model: str, scenario: str, cells: Mapping[str, Any]) -> Table:
    table = _table(
        f"{model}, {scenario}: ms of a call, one in flight",
        SCENARIOS[scenario].help,
        ("n", *_DURATIONS, "/s", "wrong"),
    )
    for name, each in sorted(cells.items(), key=lambda item: float(item[1]["mean_ms"])):
        times = (_three(each[key]) for key in _DURATIONS.values())
        table.add_row(name, str(each["n"]), *times, f"{each['answers_hz']:.2f}", str(each["wrong_pixels"]))
    return table


def _usage(scenario: str, cells: Mapping[str, Any]) -> Table:
    table = _table(
        f"{scenario}: what the server's processes take",
        "",
        ("CPU %", "RSS MB", "PSS MB", "EUR"),
    )
    for name, each in sorted(cells.items(), key=lambda item: float(item[1]["price_eur"])):
        sizes = (f"{each[key]:,.0f}" for key in ("cpu_percent", "rss_mb", "pss_mb"))
        table.add_row(name, *sizes, f"{each['price_eur']:.2f}")
    return table


def _tests(tests: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        f"The runs' means against those of {AGAINST}",
        f"The difference with its 95 % interval and p-value: {PAIRED} over the rounds, adjusted by Bonferroni's method for "
        "all tests of its figure.",
        ("figure", "difference", "interval", "verdict", "p"),
        leading=("scenario", "way"),
    )
    for each in tests:
        bounds = "" if each["low"] is None else f"{_three(each['low'])} to {_three(each['high'])}"
        p = NOTHING if each["p_value"] is None else probability(each["p_value"])
        difference = _three(each["difference"])
        table.add_row(each["scenario"], each["of"], TESTED[each["figure"]], difference, bounds, each["verdict"], p)
    return table


def _table(title: str, caption: str, figures: Iterable[str], leading: Iterable[str] = ("way",)) -> Table:
    table = Table(title=title, caption=caption)
    for heading in leading:
        table.add_column(heading, no_wrap=True)
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _three(value: float) -> str:
    """Formats a number with two decimals if the size is below 10, with one below 1000, otherwise without."""
    size = abs(value)
    return number(value, 2 if size < 10 else 1 if size < 1000 else 0)  # noqa: PLR2004

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bench.offloading.cost import footage_cost
from bench.peers.load_comparison.load import Taken
from bench.peers.load_comparison.plan import Plan
from bench.peers.rig.resource_meter import Usage
from bench.peers.scenario_comparison.comparison import Run, ScenarioMeasurements
from bench.peers.scenario_comparison.result import result
from bench.peers.scenario_comparison.table import show

PLAN = Plan(Path("bag"), Path("models"), scenarios=("cold_start", "same_image"), rounds=3, frames=4)


def _run(scenario: str, server: str, number: int, first_ms: float, then_ms: float) -> Run:
    """Returns a run of four calls; the first call has one wrong pixel."""
    taken = [Taken(first_ms, 5.0, 1), *[Taken(then_ms, 5.0, 0)] * 3]
    wall_s = sum(each.total_ms for each in taken) / 1e3
    return Run(scenario, server, "grpc", number, taken, Usage(wall_s, 0.5 * wall_s, 100.0 + number, 80.0))


OUTCOME = ScenarioMeasurements(
    [
        _run(scenario, server, number, first_ms + number, then_ms + number / 10)
        for number in range(3)
        for scenario in PLAN.scenarios
        for server, first_ms, then_ms in (("skylane", 100.0, 10.0), ("triton", 200.0, 30.0))
    ],
    {"ray": "no environment"},
    {"triton": "nvidia-pytriton 0.7.0"},
)


def test_the_figures_of_a_server_include_all_its_calls() -> None:
    """They are the quartiles and the mean, as in 2022, and the first call, which shows the cold start."""
    cell = result(PLAN, OUTCOME)["scenarios"]["cold_start"]["skylane grpc"]
    assert (cell["n"], cell["runs"], cell["wrong_pixels"]) == (12, 3, 3)
    assert cell["first_ms"] == 101.0
    assert cell["p25_ms"] < cell["p50_ms"] < cell["p75_ms"] < cell["mean_ms"] < cell["p95_ms"]
    assert cell["mean_ms"] == pytest.approx(cell["sum_ms"] / 12)
    assert cell["answers_hz"] == pytest.approx(12e3 / cell["sum_ms"])
    assert cell["cpu_percent"] == pytest.approx(50.0)
    assert cell["rss_mb"] == 102.0
    assert cell["price_eur"] == footage_cost(cell["answers_hz"], 1.25).price


def test_every_server_is_tested_against_skylanes_plain_call() -> None:
    """Durations and utilisation are compared run by run; p-values are corrected for the number of tests."""
    tests = result(PLAN, OUTCOME)["tests"]
    assert [(each["figure"], each["scenario"], each["of"]) for each in tests] == [
        (figure, scenario, "triton grpc") for figure in ("mean_ms", "cpu_percent") for scenario in PLAN.scenarios
    ]
    slower = tests[1]
    assert slower["difference"] == pytest.approx((200 - 100 + 3 * (30 - 10)) / 4)
    assert slower["low"] < slower["difference"] < slower["high"]
    assert (slower["test"], slower["verdict"]) == ("paired t-test", "higher")
    assert slower["p_value"] < 0.05


def test_a_single_round_has_no_p_value_and_is_valid_json() -> None:
    """NaN is not valid JSON, and parsers of other languages would refuse the file."""
    one = ScenarioMeasurements([each for each in OUTCOME.runs if each.number == 0])
    found = result(PLAN, one)
    assert found["tests"][0]["p_value"] is None
    json.dumps(found, allow_nan=False)
    show(found, Console(file=io.StringIO()))


def test_without_skylane_there_are_no_tests() -> None:
    """Skylane was skipped, but the figures of the peers are still shown."""
    found = result(PLAN, ScenarioMeasurements([each for each in OUTCOME.runs if each.server == "triton"]))
    assert found["tests"] == []
    assert list(found["scenarios"]["cold_start"]) == ["triton grpc"]


def test_a_scenario_without_measurements_has_no_table() -> None:
    """All its servers failed earlier, and are listed as skipped."""
    found = result(PLAN, ScenarioMeasurements(skipped={"skylane": "gone"}))
    assert found["scenarios"] == {"cold_start": {}, "same_image": {}}
    show(found, Console(file=io.StringIO()))


def test_the_tables_list_all_servers_and_name_the_skipped_ones() -> None:
    """The tables fit in eighty columns."""
    console = Console(file=io.StringIO(), width=80)
    show(result(PLAN, OUTCOME), console)
    assert isinstance(console.file, io.StringIO)
    output = console.file.getvalue()
    assert output.index("skylane grpc") < output.index("triton grpc"), "the fastest first"
    for text in ("cold_start: ms of a call", "same_image: what the server", "Skipped: ray: no environment", "CPU %"):
        assert text in output
    assert "…" not in output

import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from analysis.offloading import footage_cost
from bench.harness import BenchRun
from bench.peers.cli import peers
from bench.peers.scenario_comparison import measure, run_figures, summarise, tables, ways
from bench.peers.starter import ALL, NAMES, OURS, SCENARIOS, PeerPlan
from bench.peers.workload import Taken
from rosbag_tools.drive.recording import SEED, DrivePlan, record
from shared.models.repository import default_root

PLAN = PeerPlan(Path("bag"), Path("models"), wanted_scenarios=("cold_start", "same_image"), rounds=3, frames=4)


def _run(scenario: str, server: str, number: int, first_ms: float, then_ms: float) -> dict[str, Any]:
    """Returns a run of four calls; the first call has one wrong pixel."""
    taken = [Taken(first_ms, 5.0, 1), *[Taken(then_ms, 5.0, 0)] * 3]
    wall_s = sum(each.total_ms for each in taken) / 1e3
    usage = {"wall_s": wall_s, "cpu_s": 0.5 * wall_s, "cpu_percent": 50.0, "rss_mb": 100.0 + number, "pss_mb": 80.0}
    return {"scenario": scenario, "server": server, "way": "grpc", "round": number + 1, **run_figures(taken, usage)}


RUNS = [
    _run(scenario, server, number, first_ms + number, then_ms + number / 10)
    for number in range(3)
    for scenario in PLAN.scenarios
    for server, first_ms, then_ms in (("skylane", 100.0, 10.0), ("triton", 200.0, 30.0))
]


def _result(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    skipped = {"ray": "no environment"}
    return {**summarise(PLAN, runs), "skipped": skipped, "versions": {"triton": "nvidia-pytriton 0.7.0"}}


def _text(result: Mapping[str, Any]) -> str:
    console = Console(file=StringIO(), width=80)
    for part in tables(result):
        console.print(part)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_figures_of_a_server_include_all_its_calls() -> None:
    """They are the quartiles and the mean, as in 2022, and the first call, which shows the cold start."""
    cell = _result(RUNS)["scenarios"]["cold_start"]["skylane grpc"]
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
    tests = _result(RUNS)["tests"]
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
    found = _result([run for run in RUNS if run["round"] == 1])
    assert found["tests"][0]["p_value"] is None
    json.dumps(found, allow_nan=False)
    assert _text(found)


def test_without_skylane_there_are_no_tests() -> None:
    """Skylane was skipped, but the figures of the peers are still shown."""
    found = _result([run for run in RUNS if run["server"] == "triton"])
    assert found["tests"] == []
    assert list(found["scenarios"]["cold_start"]) == ["triton grpc"]


def test_a_scenario_without_measurements_has_no_table() -> None:
    """All its servers failed earlier, and are listed as skipped."""
    found = _result([])
    assert found["scenarios"] == {"cold_start": {}, "same_image": {}}
    assert _text(found)


def test_the_tables_list_all_servers_and_name_the_skipped_ones() -> None:
    """The tables fit in eighty columns."""
    output = _text(_result(RUNS))
    assert output.index("skylane grpc") < output.index("triton grpc"), "the fastest first"
    for text in ("cold_start: ms of a call", "same_image: what the server", "Skipped: ray: no environment", "CPU %"):
        assert text in output
    assert "…" not in output


def test_skylane_completes_every_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores equal those of the direct call, also for images that the worker itself resizes."""
    monkeypatch.chdir(tmp_path)  # The images of mixed sizes are written to this folder.
    record(tmp_path / "drive", DrivePlan(seed=SEED, frames=2, width=484, height=304))
    plan = PeerPlan(
        tmp_path / "drive", default_root(), "road-weather", rounds=1, frames=5, names=(OURS,), wanted_scenarios=(ALL,)
    )
    with BenchRun() as run:
        found = measure(plan, run)
    assert found["skipped"] == {}
    for name in SCENARIOS:
        for endpoint in ("skylane grpc", "skylane mqtt"):
            cell = found["scenarios"][name][endpoint]
            assert (cell["n"], cell["wrong_pixels"]) == (5, 0)
            assert cell["cpu_percent"] > 0
            assert cell["rss_mb"] > 100
    (cold, *_) = [each for each in found["runs"] if each["scenario"] == "cold_start"]
    calls_ms = cold["calls_ms"]
    assert calls_ms[0] > 2 * np.median(calls_ms), "the first call is a cold server's"


def test_each_server_has_a_transport_over_tcp() -> None:
    """Shared memory is left out, because a vehicle cannot use it to reach a server."""
    assert {name: ways(name) for name in NAMES} == {
        "skylane": ("grpc", "mqtt"),
        "triton": ("grpc",),
        "ray": ("http",),
        "bentoml": ("http",),
        "litserve": ("http",),
        "mlserver": ("grpc",),
        "grpcio": ("grpc",),
    }


def test_a_scenario_refuses_raw_frames() -> None:
    """The images of a scenario have several sizes, which raw pixels do not contain."""
    response = CliRunner().invoke(peers, ["--scenario", "all", "--codec", "raw"])
    assert response.exit_code == 2
    assert "leave --codec raw out" in response.output

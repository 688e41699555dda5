from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.harness import BenchRun, Comparison
from bench.peers.clients import Job, PeerError
from bench.peers.load_comparison import measure, summarise, tables
from bench.peers.rig import NETWORK_VARIABLE, ProcessTree, environment
from bench.peers.starter import PeerEndpoint, PeerPlan, Starter, start_all
from rosbag_tools.drive.recording import SEED, DrivePlan, record
from shared.models.repository import default_root

PLAN = PeerPlan(Path("bag"), Path("models"), codec="raw", rounds=2, frames=2)
PEER = "litserve"
# Overheads of two rounds in ms, answers per second, wrong pixels of each call.
OURS = {"skylane grpc": ((4.0, 8.0), 20.0, 0)}
PEERS = {
    "triton grpc": ((5.0, 10.0), 21.0, 0),
    "triton shm": ((2.0, 2.0), 19.0, 7),
    "ray http": ((30.0, 30.0), 9.0, 0),
}
FLOOR = {"grpcio grpc": ((3.0, 3.0), 22.0, 0)}


def _endpoint(name: str) -> PeerEndpoint:
    server, transport = name.split()
    return PeerEndpoint(
        server,
        transport,
        lambda: pytest.fail("must not be called"),
        ProcessTree([]),
        over_tcp=transport != "shm",
        is_floor=server == "grpcio",
    )


def _result(measured: Mapping[str, tuple[tuple[float, float], float, int]]) -> dict[str, Any]:
    comparison = Comparison(measured)
    for name, (overheads_ms, answers_hz, wrong) in measured.items():
        for overhead_ms in overheads_ms:
            samples = {
                "overhead_ms": [overhead_ms] * 2,
                "total_ms": [50.0 + overhead_ms] * 2,
                "inference_ms": [50.0] * 2,
            }
            samples |= {"wrong_pixels": [wrong, wrong, 0], "answers_hz": [answers_hz]}
            comparison.add(name, {f"raw {measure}": values for measure, values in samples.items()})
    found = summarise(PLAN, [_endpoint(name) for name in measured], comparison)
    return {**found, "skipped": {"bentoml": "no environment"}, "versions": {"triton": "nvidia-pytriton 0.7.0"}}


def _text(result: Mapping[str, Any], width: int) -> str:
    console = Console(file=StringIO(), width=width)
    for part in tables(result):
        console.print(part)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_our_overhead_is_compared_with_the_fastest_peer_over_tcp() -> None:
    """Shared memory is not a network, and a vehicle shares no memory with its worker."""
    ratio = _result(OURS | PEERS)["ratios"]["raw"]["skylane grpc"]
    assert ratio["to"] == "triton grpc"
    assert ratio["ratio"] == pytest.approx(0.8)
    assert ratio["by_round"] == pytest.approx([0.8, 0.8])


def test_every_comparison_that_a_peer_wins_is_reported() -> None:
    """A table that shows only the comparisons that we win would be an advertisement."""
    assert _result(OURS | PEERS)["wins"] == [
        "raw, one in flight: triton shm adds 2.00 ms to a call, skylane grpc 6.00 ms",
        "raw, 8 clients: triton grpc answers 21.00/s, skylane grpc 20.00/s",
    ]


def test_the_floor_is_not_compared_as_a_peer_and_is_reported_separately() -> None:
    """A bare gRPC server would win every comparison; its overhead shows which target is possible."""
    found, without = _result(OURS | PEERS | FLOOR), _result(OURS | PEERS)
    assert found["ratios"] == without["ratios"]
    assert found["wins"] == without["wins"]
    assert found["floors"]["raw"]["of"]["skylane grpc"] == pytest.approx(0.5)
    sentence = "adds 3.00 ms to a call, 0.50 of what skylane grpc adds, 0.40 of what triton grpc adds."
    assert sentence in _text(found, 200)


def test_the_table_lists_all_servers_and_names_the_skipped_ones() -> None:
    """The reader chooses a server by this table. It fits in eighty columns. A single wrong mask must be visible."""
    found = _result(OURS | PEERS)
    assert found["cells"]["raw"]["triton shm"]["wrong_pixels"] == 28
    assert found["cells"]["raw"]["triton shm"]["masks"] == 6
    text = _text(found, 80)
    places = [text.index(name) for name in ("triton shm", "skylane grpc", "triton grpc", "ray http")]
    assert places == sorted(places), "the fastest first"
    assert "Skipped: bentoml: no environment" in text
    assert "nvidia-pytriton 0.7.0" in text
    assert "1.0, not decided: fewer" in text
    assert "A peer wins. raw, 8 clients: triton grpc answers 21.00/s" in text
    assert "…" not in text


def test_without_a_peer_there_is_no_ratio() -> None:
    """A measurement of Skylane without peers still gives its figures."""
    found = _result(OURS)
    assert found["ratios"] == {"raw": {}}
    assert found["wins"] == []
    assert found["cells"]["raw"]["skylane grpc"]["n"] == 4


def test_an_endpoint_without_measurements_has_no_row() -> None:
    """The endpoint failed in the first round, and is listed as skipped."""
    found = summarise(PLAN, [_endpoint("ray http")], Comparison(["ray http"]))
    assert found["cells"] == {"raw": {}}
    assert "ray http: gone" in _text({**found, "skipped": {"ray http": "gone"}, "versions": {}}, 80)


def test_a_peer_without_an_environment_is_skipped_with_the_reason(
    tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most machines have only some of the environments; the peers that have one are still measured."""
    monkeypatch.chdir(tmp_path)
    plan = PeerPlan(tmp_path, tmp_path, names=("litserve", "triton"))
    expected = r"no server to measure: litserve: no environment in .*; triton: no environment"
    with BenchRun() as run, pytest.raises(PeerError, match=expected):
        start_all(plan, Starter(plan, job, tmp_path), [], run)


def test_a_server_on_all_addresses_runs_only_in_its_own_network(
    tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray has no authentication, and runs any code that it receives."""
    monkeypatch.delenv(NETWORK_VARIABLE, raising=False)
    plan = PeerPlan(tmp_path, tmp_path, names=("ray",))
    expected = "ray: it listens on every address of the machine: run as root"
    with BenchRun() as run, pytest.raises(PeerError, match=expected):
        start_all(plan, Starter(plan, job, tmp_path), [], run)


def test_a_peer_answers_with_the_masks_of_the_direct_call(tmp_path: Path) -> None:
    """The comparison is only valid if the peer runs the same function on an undamaged image."""
    try:
        environment(PEER).check()
    except PeerError as error:
        pytest.skip(str(error))
    record(tmp_path / "drive", DrivePlan(seed=SEED, frames=1, width=968, height=608))
    plan = PeerPlan(tmp_path / "drive", default_root(), names=(PEER,), rounds=1, frames=4, clients=2, turn_s=1.0)
    with BenchRun() as run:
        found = measure(plan, run)
    assert found["skipped"] == {}
    for codec in plan.codecs:
        figures = found["cells"][codec]["litserve http"]
        assert figures["n"] == 4
        assert figures["wrong_pixels"] == 0
        assert figures["overhead_ms"]["min"] > 0
        assert figures["inference_ms"]["min"] > 0

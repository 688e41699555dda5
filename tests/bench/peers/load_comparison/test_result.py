import io
from pathlib import Path

import pytest
from rich.console import Console

from bench.peers.load_comparison.comparison import LoadMeasurements, Turns
from bench.peers.load_comparison.load import Taken
from bench.peers.load_comparison.peer_endpoint import PeerEndpoint
from bench.peers.load_comparison.plan import Plan
from bench.peers.load_comparison.result import result
from bench.peers.load_comparison.table import show
from bench.peers.rig.process_tree import ProcessTree

PLAN = Plan(Path("bag"), Path("models"), codecs=("raw",), rounds=2, frames=2)


def _endpoint(server: str, way: str, *, over_tcp: bool = True, is_floor: bool = False) -> PeerEndpoint:
    return PeerEndpoint(server, way, lambda: pytest.fail("nobody calls"), ProcessTree([]), over_tcp, is_floor)


def _turns(overheads_ms: tuple[float, float], answers_hz: float, wrong: int = 0) -> Turns:
    alone = [[Taken(50.0 + overhead, 50.0, wrong)] * 2 for overhead in overheads_ms]
    return Turns(alone, [[Taken(400.0, 50.0, 0)]] * 2, [answers_hz] * 2)


OUTCOME = LoadMeasurements(
    {
        "raw": {
            _endpoint("skylane", "grpc"): _turns((4.0, 8.0), 20.0),
            _endpoint("triton", "grpc"): _turns((5.0, 10.0), 21.0),
            _endpoint("triton", "shm", over_tcp=False): _turns((2.0, 2.0), 19.0, wrong=7),
            _endpoint("ray", "http"): _turns((30.0, 30.0), 9.0),
        }
    },
    {"bentoml": "no environment"},
    {"triton": "nvidia-pytriton 0.7.0"},
)


def test_our_overhead_is_held_against_the_fastest_peer_over_tcp() -> None:
    """Memory that both share is no network: a vehicle has none with its worker."""
    ratio = result(PLAN, OUTCOME)["ratios"]["raw"]["skylane grpc"]
    assert ratio["to"] == "triton grpc"
    assert ratio["ratio"] == pytest.approx(0.8)
    assert ratio["by_round"] == pytest.approx([0.8, 0.8])


def test_every_comparison_that_a_peer_wins_is_told() -> None:
    """A table that shows only where we win is an advertisement."""
    assert result(PLAN, OUTCOME)["wins"] == [
        "raw, one in flight: triton shm adds 2.00 ms to a call, skylane grpc 6.00 ms",
        "raw, 8 clients: triton grpc answers 21.00/s, skylane grpc 20.00/s",
    ]


def test_the_floor_is_nobodys_rival_and_is_told_beside_the_target() -> None:
    """A bare server would win every comparison; how far it lies below tells what a target can ask for."""
    with_floor = {**OUTCOME.turns["raw"], _endpoint("grpcio", "grpc", is_floor=True): _turns((3.0, 3.0), 22.0)}
    found = result(PLAN, LoadMeasurements({"raw": with_floor}, {}, {}))
    assert found["ratios"] == result(PLAN, OUTCOME)["ratios"]
    assert found["wins"] == result(PLAN, OUTCOME)["wins"]
    assert found["floors"]["raw"]["of"]["skylane grpc"] == pytest.approx(0.5)
    console = Console(file=io.StringIO(), width=200)
    show(found, console)
    assert isinstance(console.file, io.StringIO)
    told = "adds 3.00 ms to a call, 0.50 of what skylane grpc adds, 0.40 of what triton grpc adds."
    assert told in console.file.getvalue()


def test_wrong_pixels_are_summed_over_all_masks() -> None:
    """One wrong mask among hundreds is wrong."""
    cells = result(PLAN, OUTCOME)["cells"]["raw"]
    assert cells["triton shm"]["wrong_pixels"] == 28
    assert cells["triton shm"]["masks"] == 6
    assert cells["skylane grpc"]["wrong_pixels"] == 0


def test_the_table_shows_everybody_and_says_who_is_missing() -> None:
    """Its reader decides by it; eighty columns hold it."""
    console = Console(file=io.StringIO(), width=80)
    show(result(PLAN, OUTCOME), console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert [said.index(name) for name in ("triton shm", "skylane grpc", "triton grpc", "ray http")] == sorted(
        said.index(name) for name in ("triton shm", "skylane grpc", "triton grpc", "ray http")
    ), "the quickest first"
    assert "Skipped: bentoml: no environment" in said
    assert "nvidia-pytriton 0.7.0" in said
    assert "1.0, met" in said
    assert "A peer wins. raw, 8 clients: triton grpc answers 21.00/s" in said
    assert "…" not in said


def test_without_a_peer_there_is_no_ratio() -> None:
    """Whoever measures Skylane alone gets its figures all the same."""
    ours = {each: turns for each, turns in OUTCOME.turns["raw"].items() if each.server == "skylane"}
    found = result(PLAN, LoadMeasurements({"raw": ours}, {}, {}))
    assert found["ratios"] == {"raw": {}}
    assert found["wins"] == []
    assert found["cells"]["raw"]["skylane grpc"]["n"] == 4


def test_a_way_that_never_had_a_turn_is_no_row() -> None:
    """It failed in the first round, and is told among the skipped."""
    found = result(PLAN, LoadMeasurements({"raw": {_endpoint("ray", "http"): Turns()}}, {"ray http": "gone"}, {}))
    assert found["cells"] == {"raw": {}}
    show(found, Console(file=io.StringIO()))

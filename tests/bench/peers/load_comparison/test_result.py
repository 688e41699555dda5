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


def _endpoint(server: str, transport: str, *, over_tcp: bool = True, is_floor: bool = False) -> PeerEndpoint:
    return PeerEndpoint(
        server, transport, lambda: pytest.fail("must not be called"), ProcessTree([]), over_tcp, is_floor
    )


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


def test_our_overhead_is_compared_with_the_fastest_peer_over_tcp() -> None:
    """Shared memory is not a network, and a vehicle shares no memory with its worker."""
    ratio = result(PLAN, OUTCOME)["ratios"]["raw"]["skylane grpc"]
    assert ratio["to"] == "triton grpc"
    assert ratio["ratio"] == pytest.approx(0.8)
    assert ratio["by_round"] == pytest.approx([0.8, 0.8])


def test_every_comparison_that_a_peer_wins_is_reported() -> None:
    """A table that shows only the comparisons that we win would be an advertisement."""
    assert result(PLAN, OUTCOME)["wins"] == [
        "raw, one in flight: triton shm adds 2.00 ms to a call, skylane grpc 6.00 ms",
        "raw, 8 clients: triton grpc answers 21.00/s, skylane grpc 20.00/s",
    ]


def test_the_floor_is_not_compared_as_a_peer_and_is_reported_separately() -> None:
    """A bare gRPC server would win every comparison; its overhead shows which target is possible."""
    with_floor = {**OUTCOME.turns["raw"], _endpoint("grpcio", "grpc", is_floor=True): _turns((3.0, 3.0), 22.0)}
    found = result(PLAN, LoadMeasurements({"raw": with_floor}, {}, {}))
    assert found["ratios"] == result(PLAN, OUTCOME)["ratios"]
    assert found["wins"] == result(PLAN, OUTCOME)["wins"]
    assert found["floors"]["raw"]["of"]["skylane grpc"] == pytest.approx(0.5)
    console = Console(file=io.StringIO(), width=200)
    show(found, console)
    assert isinstance(console.file, io.StringIO)
    sentence = "adds 3.00 ms to a call, 0.50 of what skylane grpc adds, 0.40 of what triton grpc adds."
    assert sentence in console.file.getvalue()


def test_wrong_pixels_are_summed_over_all_masks() -> None:
    """A single wrong mask among hundreds must be visible."""
    cells = result(PLAN, OUTCOME)["cells"]["raw"]
    assert cells["triton shm"]["wrong_pixels"] == 28
    assert cells["triton shm"]["masks"] == 6
    assert cells["skylane grpc"]["wrong_pixels"] == 0


def test_the_table_lists_all_servers_and_names_the_skipped_ones() -> None:
    """The reader chooses a server by this table. It fits in eighty columns."""
    console = Console(file=io.StringIO(), width=80)
    show(result(PLAN, OUTCOME), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert [text.index(name) for name in ("triton shm", "skylane grpc", "triton grpc", "ray http")] == sorted(
        text.index(name) for name in ("triton shm", "skylane grpc", "triton grpc", "ray http")
    ), "the fastest first"
    assert "Skipped: bentoml: no environment" in text
    assert "nvidia-pytriton 0.7.0" in text
    assert "1.0, met" in text
    assert "A peer wins. raw, 8 clients: triton grpc answers 21.00/s" in text
    assert "…" not in text


def test_without_a_peer_there_is_no_ratio() -> None:
    """A measurement of Skylane without peers still gives its figures."""
    ours = {each: turns for each, turns in OUTCOME.turns["raw"].items() if each.server == "skylane"}
    found = result(PLAN, LoadMeasurements({"raw": ours}, {}, {}))
    assert found["ratios"] == {"raw": {}}
    assert found["wins"] == []
    assert found["cells"]["raw"]["skylane grpc"]["n"] == 4


def test_an_endpoint_without_measurements_has_no_row() -> None:
    """The endpoint failed in the first round, and is listed as skipped."""
    found = result(PLAN, LoadMeasurements({"raw": {_endpoint("ray", "http"): Turns()}}, {"ray http": "gone"}, {}))
    assert found["cells"] == {"raw": {}}
    show(found, Console(file=io.StringIO()))

"""`skylane edge play --metrics`: what a vehicle exports, at which addresses, and who cannot disturb it."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.ledger import RunCounts
from edge.prometheus_metrics import VehicleCollector, open_metrics
from edge.transports.mqtt_transport import MqttTransport
from shared.clock import Offset
from shared.errors import SkylaneError
from shared.messages.topics import FrameId
from shared.prometheus import serve_metrics
from shared.runlog.latency_log import LatencyRow, Outcome
from shared.stages import Stage
from tests.support.memory_bus import MemoryBus
from tests.support.mqtt_bus import free_port

WAIT_S = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(name="collector")
def _collector() -> Iterator[VehicleCollector]:
    with MemoryBus() as bus:
        config = EdgeConfig(vehicle="car")
        yield VehicleCollector(config, MqttTransport(bus, config, "s1"))


def row(outcome: Outcome = Outcome.ANSWERED, reason: str = "", *, result_ms: int = 120) -> LatencyRow:
    """Returns the row of a frame that was away for 100 ms, 60 of them at the worker; refused ones were not sent."""
    edge = {Stage.DUE: 0, Stage.TAKEN: 5_000_000}
    cloud: dict[Stage, int] = {}
    if outcome is Outcome.ANSWERED:
        edge |= {Stage.SENT: 10_000_000, Stage.RETURNED: 110_000_000, Stage.MASK_DECODED: result_ms * 1_000_000}
        cloud = {Stage.RECEIVED: 900, Stage.DEQUEUED: 20_000_900, Stage.REPLIED: 60_000_900}
    offset = Offset(7, 2_500_000) if cloud else None
    return LatencyRow("car", "left", "s1", 0, outcome, reason, edge_times=edge, cloud_times=cloud, clock=offset)


def end(collector: VehicleCollector, row: LatencyRow) -> None:
    """Ends a frame with this row."""
    collector.ended(FrameRecord(FrameId("car", "left", "s1", 0), row), None)


def samples(collector: VehicleCollector) -> dict[str, float]:
    """Returns what is exported, by name and labels."""
    found = {}
    for family in collector.collect():
        for sample in family.samples:
            found[" ".join([sample.name, *(f"{k}={v}" for k, v in sorted(sample.labels.items()))])] = sample.value
    return found


def test_a_frame_is_in_the_buckets_of_its_times(collector: VehicleCollector) -> None:
    """Bounds are inclusive. The time at the link is what the worker did not use."""
    end(collector, row())
    end(collector, row(result_ms=150))
    collector.counts = lambda: RunCounts(5, 3, {}, {"duplicate": 2}, None, retried=4)
    found = samples(collector)
    name = "skylane_vehicle_frame_seconds"
    assert [found[f"{name}_bucket le={bound} outcome=answered"] for bound in ("0.1", "0.15", "+Inf")] == [0, 2, 2]
    assert found[f"{name}_sum outcome=answered"] == pytest.approx(0.27)
    for stage, seconds in {
        "taken": 0.005,
        "returned": 0.1,
        "dequeued": 0.02,
        "replied": 0.04,
        "crossing": 0.04,
    }.items():
        assert found[f"skylane_vehicle_stage_seconds_sum stage={stage}"] == pytest.approx(2 * seconds)
    assert found["skylane_vehicle_frames_total outcome=answered reason="] == 2
    assert found["skylane_vehicle_frames_in_flight"] == 3
    assert found["skylane_vehicle_frames_retried_total"] == 4
    assert found["skylane_vehicle_answers_ignored_total reason=duplicate"] == 2
    assert found["skylane_vehicle_clock_error_seconds"] == 0.0025
    assert found["skylane_broker_connected"] == 1


def test_outcomes_are_counted_by_reason_and_have_no_latency(collector: VehicleCollector) -> None:
    """A frame without a result would make the percentiles better than they are."""
    for outcome, reason, count in ((Outcome.DROPPED, "window", 3), (Outcome.LOST, "no answer", 2)):
        for _ in range(count):
            end(collector, row(outcome, reason))
    found = samples(collector)
    assert found["skylane_vehicle_frames_total outcome=dropped reason=window"] == 3
    assert found["skylane_vehicle_frames_total outcome=lost reason=no_answer"] == 2
    assert not [name for name in found if name.startswith("skylane_vehicle_frame_seconds")]


def test_a_worker_cannot_add_series_by_its_reasons(collector: VehicleCollector) -> None:
    """The reason of a refusal is free text of a worker: it could fill Prometheus, or contain what a terminal obeys."""
    for number in range(1000):
        end(collector, row(Outcome.REJECTED, f'\x1b[31m"}} made up {number}\n: <b>'))
    found = samples(collector)
    assert [name for name in found if name.startswith("skylane_vehicle_frames_total")] == [
        "skylane_vehicle_frames_total outcome=rejected reason=other"
    ]


@pytest.mark.parametrize("host", ["", "127.0.0.1", "localhost", "[::1]"])
def test_metrics_are_for_this_machine_unless_another_address_is_typed(host: str, collector: VehicleCollector) -> None:
    """Without a host it is the loopback address, not all addresses."""
    with serve_metrics(f"{host}:0", collector) as address:
        assert address.endswith("/metrics")
        assert "everyone" not in address
        text = httpx.get(address, timeout=WAIT_S).text
        names = {family.name for family in text_string_to_metric_families(text)}
        assert {"skylane_vehicle_frames", "skylane_build_info", "process_resident_memory_bytes"} <= names
        port = int(address.rpartition(":")[2].partition("/")[0])
        for address_of_network in others():
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((address_of_network, port), 5.0)


def others() -> list[str]:
    """Returns an address of this machine that others reach; none without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Sends nothing.
        except OSError:
            return []
        return [probe.getsockname()[0]]


def test_an_open_address_is_said(collector: VehicleCollector) -> None:
    """Whoever types it should read what it means."""
    with serve_metrics("0.0.0.0:0", collector) as address:
        assert address.endswith("/metrics, for everyone who reaches this machine")


@pytest.mark.parametrize(
    "address",
    [
        "9464",
        "localhost",
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "http://127.0.0.1:9464",
        "::1",
        "[::1]",
        "a b:1",
        "127.0.0.1:9464/metrics",
        "\x1b[31m:1",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_before_the_run(address: str) -> None:
    """The message has what to write instead."""
    with pytest.raises(ValidationError, match="write HOST:PORT"):
        EdgeConfig(metrics=address)


def test_an_address_in_use_or_of_another_machine_is_refused(collector: VehicleCollector) -> None:
    """Before the first frame, with the remedy."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for address in (f"127.0.0.1:{port}", "192.0.2.1:0", "nowhere.invalid:0"):
            with pytest.raises(SkylaneError, match=r"--metrics: cannot listen at .*: give an address of this machine"):
                serve_metrics(address, collector).__enter__()


def test_slow_and_mad_clients_stop_neither_the_run_nor_the_next_scrape(collector: VehicleCollector) -> None:
    """They are closed after a while, and meanwhile others are served; of very many, the later ones are turned away."""
    with serve_metrics(":0", collector) as address, ExitStack() as stack:
        port = int(address.rpartition(":")[2].partition("/")[0])
        threads = threading.active_count()
        for sent in (b"", b"GET /metr", b"\0\xff\n\n", b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n"):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_S))
            client.sendall(sent)
        for method in ("POST", "DELETE"):
            assert httpx.request(method, address, timeout=WAIT_S).status_code == 405
        idle = stack.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_S))
        assert httpx.get(address, timeout=WAIT_S).is_success
        idle.settimeout(0)
        with pytest.raises(BlockingIOError):  # It is still connected: the scrape did not wait for its end.
            idle.recv(1)
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_S))
        assert threading.active_count() <= threads + 2 * 16  # Each client and its limit.


def test_the_port_is_free_again_after_the_run() -> None:
    """The next run has the same address."""
    address = f"127.0.0.1:{free_port()}"
    config = EdgeConfig(vehicle="car", metrics=address)
    for _ in range(2):
        with MemoryBus() as bus, open_metrics(config, MqttTransport(bus, config, "s1")):
            assert httpx.get(f"http://{address}/metrics", timeout=WAIT_S).is_success
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{address}/metrics", timeout=WAIT_S)


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path) -> None:
    """A vehicle does not have it by default."""
    (tmp_path / "prometheus_client.py").write_text("raise ModuleNotFoundError(name='prometheus_client')")
    script = (
        "from edge.config import EdgeConfig\nfrom edge.run import open_follower\n"
        "open_follower('--metrics', ':0', EdgeConfig(metrics=':0'), None)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert "'--metrics' needs prometheus_client, which is not installed" in ended.stderr
    assert "skylane[metrics]" in ended.stderr

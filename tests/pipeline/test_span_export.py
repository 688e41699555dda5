"""Spans of both nodes by OTLP, read by a receiver with OpenTelemetry's own messages: what they say, and what they cost."""

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ops.broker.broker import Broker
from ops.processes.worker_process import Worker
from shared.messages import topics
from shared.messages.topics import TraceContext
from shared.mqtt.broker_options import BrokerOptions
from shared.mqtt.bus import Properties
from shared.runlog.latency_log import CSV_NAME, read_rows
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage
from tests.conftest import need_mosquitto
from tests.pipeline.rig import CLASSES, HEIGHT, WIDTH, pictures
from tests.support.command import Command
from tests.support.local_models import write_segmentation
from tests.support.otlp_receiver import MISBEHAVIOURS, Answer, OtlpReceiver

VEHICLE, WORKER = "skylane-vehicle", "skylane-worker"
FRAMES = 24
MODEL = "local"

pytestmark = pytest.mark.mosquitto


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose worker starts and answers at once; takes batches of any size."""
    root = tmp_path_factory.mktemp("repository")
    write_segmentation(root, MODEL, HEIGHT, WIDTH, CLASSES)
    return root


def play(folder: Path, broker: Broker, *flags: str) -> list[dict[str, str]]:
    """Plays frames to the worker and returns the rows of the log."""
    return play_and_log(folder, broker, *flags)[0]


def play_and_log(folder: Path, broker: Broker, *flags: str) -> tuple[list[dict[str, str]], list[str]]:
    """Plays frames to the worker and returns the rows of the log, and the vehicle's log lines."""
    source = pictures(folder, FRAMES)
    run = folder / "run"
    options = ("--broker", broker.url, "--model", MODEL, "--out", run, "--closed-loop", "--window", "8")
    with Command("edge", "play", source, *options, "--burst", "8", "--no-sinks", *flags) as vehicle:
        code, printed = vehicle.wait()
    assert code == 0, (printed, vehicle.log_lines)
    assert (run / CSV_NAME).is_file()
    return list(read_rows(run)), vehicle.log_lines


def attributes(span: Any) -> dict[str, str]:
    """Returns the attributes that are texts."""
    return {each.key: each.value.string_value for each in span.attributes}


def test_both_nodes_export_one_trace_for_each_frame(tmp_path: Path, mosquitto_broker: Broker, repository: Path) -> None:
    """The worker's spans are children of the vehicle's attempt, and the durations those of the log."""
    with OtlpReceiver() as receiver:
        otel = ("--otel", receiver.url)
        flags = (*otel, "--max-wait-ms", "200", "--max-batch", "4")
        with Worker(mosquitto_broker.url, models=repository, model=MODEL, flags=flags):
            rows = play(tmp_path, mosquitto_broker, *otel)
        frames = receiver.named(VEHICLE, "frame")
        attempts = {span.span_id: span for span in receiver.named(VEHICLE, "attempt")}
        served = receiver.named(WORKER, "serve")
        batches = receiver.named(WORKER, "batch")
        spans = [span for _, span in receiver.spans]
    assert len(frames) == len(attempts) == len(served) == len(rows) == FRAMES
    assert len({span.trace_id for span in frames}) == FRAMES
    by_sequence = {attributes(span)["skylane.frame"].rpartition("/")[2]: span for span in frames}
    for row in rows:
        frame = by_sequence[row["sequence"]]
        own = [span for span in spans if span.trace_id == frame.trace_id]
        (attempt,) = (span for span in own if span.name == "attempt")
        (serve,) = (span for span in own if span.name == "serve")
        assert attempt.parent_span_id == frame.span_id
        assert serve.parent_span_id == attempt.span_id
        assert attempt.start_time_unix_nano == int(row["t_sent_ns"])
        assert attempt.end_time_unix_nano == int(row["t_returned_ns"])
        durations = {span.name: span.end_time_unix_nano - span.start_time_unix_nano for span in own}
        for stages in (EDGE_STAGES, CLOUD_STAGES):
            passed = [stage for stage in stages if row[f"t_{stage}_ns"]]
            for before, stage in pairwise(passed):
                if stage is not Stage.RETURNED:
                    assert durations[stage] == int(row[f"t_{stage}_ns"]) - int(row[f"t_{before}_ns"])
    assert batches
    linked = [link.span_id for batch in batches for link in batch.links]
    assert len(linked) == len(set(linked))
    assert set(linked) <= {span.span_id for span in served}
    assert any(len(batch.links) > 1 for batch in batches)


def test_a_share_of_the_frames(tmp_path: Path, mosquitto_broker: Broker, repository: Path) -> None:
    """The vehicle chooses, and the worker follows: no trace is half a trace."""
    with OtlpReceiver() as receiver:
        with Worker(mosquitto_broker.url, models=repository, model=MODEL, flags=("--otel", receiver.url)):
            rows = play(tmp_path, mosquitto_broker, "--otel", receiver.url, "--otel-share", "0.5")
        chosen = {span.trace_id for span in receiver.named(VEHICLE, "frame")}
        served = {span.trace_id for span in receiver.named(WORKER, "serve")}
    assert len(rows) == FRAMES
    assert chosen == served
    assert 0 < len(chosen) < FRAMES


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[Broker]:
    """A broker with a worker that exports nothing, for several tests."""
    need_mosquitto()
    with Broker.start(kind="mosquitto") as broker, Worker(broker.url, models=repository, model=MODEL):
        yield broker


@pytest.mark.parametrize("answer", MISBEHAVIOURS, ids=lambda answer: answer.__name__)
def test_a_bad_receiver_costs_the_run_nothing(tmp_path: Path, served: Broker, answer: Answer) -> None:
    """Every frame is answered, and the run ends."""
    with OtlpReceiver(answer) as receiver:
        rows = play(tmp_path, served, "--otel", receiver.url)
    assert [row["outcome"] for row in rows] == ["answered"] * FRAMES


def test_a_receiver_that_is_down(tmp_path: Path, served: Broker) -> None:
    """A warning says so, once."""
    with OtlpReceiver() as receiver:
        url = receiver.url
    rows, lines = play_and_log(tmp_path, served, "--otel", url)
    assert [row["outcome"] for row in rows] == ["answered"] * FRAMES
    (warning,) = (line for line in lines if "spans not accepted" in line)
    assert "Connection refused" in warning
    assert any("sent=0 lost=" in line for line in lines)


def test_a_client_of_its_own_trace(mosquitto_broker: Broker, repository: Path) -> None:
    """The user property `traceparent` of a message decides, also if the frame is refused."""
    trace, span = bytes.fromhex("a" * 32), bytes.fromhex("b" * 16)
    with OtlpReceiver() as receiver:
        flags = ("--otel", receiver.url)
        with (
            Worker(mosquitto_broker.url, models=repository, model=MODEL, flags=flags),
            BrokerOptions(mosquitto_broker.url).open("other", None) as bus,
        ):
            replied = threading.Event()
            bus.subscribe(topics.MASKS.of(vehicle="other", camera="cam"), 1, lambda _: replied.set())
            context = Properties(correlation=b"other/cam/s/0", traceparent=f"00-{trace.hex()}-{span.hex()}-01")
            frames = topics.FRAMES.of(model=MODEL, vehicle="other", camera="cam")
            bus.publish(frames, b"no frame", qos=1, properties=context)
            assert replied.wait(120)
        (serve,) = receiver.named(WORKER, "serve")
    assert (serve.trace_id, serve.parent_span_id) == (trace, span)
    assert attributes(serve)["skylane.status"] == "rejected"
    assert serve.status.message.startswith("rejected: ")


@pytest.mark.parametrize("options", [("--otel-share", "0.5"), ("--otel-share", "2", "--otel", "http://h:1")])
def test_a_wrong_share_is_refused(options: tuple[str, ...]) -> None:
    """A share without a receiver would trace nothing, silently."""
    with Command("edge", "play", "none", *options) as vehicle:
        code, _ = vehicle.wait()
    assert code == 2
    assert any("--otel-share" in line for line in vehicle.log_lines)


@pytest.mark.parametrize(
    "url",
    ["", "host:4318", "ftp://host", "http://", "http://u:p@host", "http://host:0", "http://h/?a=1", "http://h:99999"],
)
def test_a_wrong_url_is_refused(url: str) -> None:
    """Before anything is connected."""
    with Command("edge", "play", "none", "--otel", url) as vehicle:
        code, _ = vehicle.wait()
    assert code == 2
    assert any("receiver of traces" in line for line in vehicle.log_lines)


def test_the_context_of_another_client() -> None:
    """W3C: an invalid `traceparent` starts a new trace, one of a later version is read as far as it is known."""
    good = f"00-{'a' * 32}-{'b' * 16}-01"
    context = TraceContext.parse(good)
    assert context is not None
    assert str(context) == good
    assert TraceContext.parse(f"cc-{'a' * 32}-{'b' * 16}-01-what-the-future-will-be-like") == context
    unsampled = TraceContext.parse(f"00-{'a' * 32}-{'b' * 16}-00")
    assert unsampled is not None
    assert not unsampled.is_sampled
    wrong = (
        None,
        "",
        "00",
        good.upper(),
        f"ff{good[2:]}",
        good[:-1],
        good + "x",
        good.replace("a", "0"),
        good.replace("b", "0"),
    )
    assert [TraceContext.parse(text) for text in wrong] == [None] * len(wrong)

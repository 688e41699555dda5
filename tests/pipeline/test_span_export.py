"""Spans of both nodes by OTLP, read by a receiver with OpenTelemetry's own messages: what they say, and what they cost."""

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from edge.config import EdgeConfig
from ops.processes.worker_process import Worker
from shared.flags import override
from shared.messages import topics
from shared.messages.topics import TraceContext
from shared.mqtt.broker_options import BrokerOptions
from shared.mqtt.bus import Properties
from shared.runlog.latency_log import read_rows
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage
from tests.pipeline.rig import CLASSES, HEIGHT, WIDTH, null_model, pictures, worker
from tests.pipeline.rig import play as play_run
from tests.support.command import Command
from tests.support.local_models import write_segmentation
from tests.support.otlp_receiver import MISBEHAVIOURS, Answer, OtlpReceiver

VEHICLE, WORKER = "skylane-vehicle", "skylane-worker"
FRAMES = 24
TRACE, SPAN = bytes.fromhex("a" * 32), bytes.fromhex("b" * 16)  # Of another client.

pytestmark = pytest.mark.mosquitto


def play(url: str, out: Path, receiver: str, **settings: Any) -> list[dict[str, str]]:
    """Plays frames in bursts and returns the rows of the log."""
    load = {"closed_loop": True, "window": 8, "burst": 8, "sinks": ()}
    code, printed = play_run(pictures(out.parent, FRAMES), url, out, otel=receiver, **load | settings)
    assert code == 0, printed
    return list(read_rows(out))


def attributes(span: Any) -> dict[str, str]:
    """Returns the attributes that are texts."""
    return {each.key: each.value.string_value for each in span.attributes}


class Exported(NamedTuple):
    """What a worker and its clients exported: all frames of one vehicle, a share of another's, and a refused frame."""

    receiver: OtlpReceiver
    shared: OtlpReceiver  # The spans of the vehicle that exports a share.
    rows: list[dict[str, str]]  # Of the vehicle that exports all.

    def served(self, vehicle: str) -> list[Any]:
        """Returns the worker's spans of a vehicle's frames."""
        spans = self.receiver.named(WORKER, "serve")
        return [span for span in spans if attributes(span)["skylane.frame"].startswith(f"{vehicle}/")]


@pytest.fixture(scope="module")
def exported(mosquitto_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    """Runs a worker that exports its spans, two vehicles and another client."""
    root = tmp_path_factory.mktemp("exported")
    write_segmentation(root / "models", "tiny", HEIGHT, WIDTH, CLASSES)
    (root / "share").mkdir()
    with OtlpReceiver() as receiver, OtlpReceiver() as shared:
        flags = ("--otel", receiver.url, "--max-wait-ms", "200", "--max-batch", "4")
        with Worker(mosquitto_url, models=root / "models", model="tiny", flags=flags):
            rows = play(mosquitto_url, root / "car-all", receiver.url)
            play(mosquitto_url, root / "share" / "car-share", shared.url, otel_share=0.5)
            with BrokerOptions(mosquitto_url).open("other", None) as bus:
                replied = threading.Event()
                bus.subscribe(topics.MASKS.of(vehicle="other", camera="cam"), 1, lambda _: replied.set())
                context = Properties(correlation=b"other/cam/s/0", traceparent=f"00-{TRACE.hex()}-{SPAN.hex()}-01")
                frames = topics.FRAMES.of(model="tiny", vehicle="other", camera="cam")
                bus.publish(frames, b"no frame", qos=1, properties=context)
                assert replied.wait(120)
        yield Exported(receiver, shared, rows)


def test_both_nodes_export_one_trace_for_each_frame(exported: Exported) -> None:
    """The worker's spans are children of the vehicle's attempt, and the durations those of the log."""
    receiver, rows = exported.receiver, exported.rows
    frames = receiver.named(VEHICLE, "frame")
    served = exported.served("car-all")
    assert len(frames) == len(receiver.named(VEHICLE, "attempt")) == len(served) == len(rows) == FRAMES
    assert len({span.trace_id for span in frames}) == FRAMES
    by_sequence = {attributes(span)["skylane.frame"].rpartition("/")[2]: span for span in frames}
    for row in rows:
        frame = by_sequence[row["sequence"]]
        own = [span for _, span in receiver.spans if span.trace_id == frame.trace_id]
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
    batches = receiver.named(WORKER, "batch")
    linked = [link.span_id for batch in batches for link in batch.links]
    assert len(linked) == len(set(linked))
    assert set(linked) <= {span.span_id for span in receiver.named(WORKER, "serve")}
    assert any(len(batch.links) > 1 for batch in batches)


def test_a_share_of_the_frames(exported: Exported) -> None:
    """The vehicle chooses, and the worker follows: no trace is half a trace."""
    chosen = {span.trace_id for span in exported.shared.named(VEHICLE, "frame")}
    assert chosen == {span.trace_id for span in exported.served("car-share")}
    assert 0 < len(chosen) < FRAMES


def test_a_client_of_its_own_trace(exported: Exported) -> None:
    """The user property `traceparent` of a message decides, also if the frame is refused."""
    (serve,) = exported.served("other")
    assert (serve.trace_id, serve.parent_span_id) == (TRACE, SPAN)
    assert attributes(serve)["skylane.status"] == "rejected"
    assert serve.status.message.startswith("rejected: ")


@pytest.mark.parametrize("answer", MISBEHAVIOURS, ids=lambda answer: answer.__name__)
def test_a_bad_receiver_costs_the_run_nothing(tmp_path: Path, mosquitto_url: str, answer: Answer) -> None:
    """Every frame is answered, and the run ends."""
    with OtlpReceiver(answer) as receiver, worker(mosquitto_url, null_model()):
        rows = play(mosquitto_url, tmp_path / "car", receiver.url)
    assert [row["outcome"] for row in rows] == ["answered"] * FRAMES


def test_a_receiver_that_is_down(tmp_path: Path, mosquitto_url: str) -> None:
    """A warning says so, once."""
    with OtlpReceiver() as receiver:
        url = receiver.url
    options = ("--broker", mosquitto_url, "--model", "tiny", "--out", tmp_path / "car", "--closed-loop", "--no-sinks")
    with (
        worker(mosquitto_url, null_model()),
        Command("edge", "play", pictures(tmp_path, FRAMES), *options, "--otel", url) as vehicle,
    ):
        code, printed = vehicle.wait()
    assert code == 0, (printed, vehicle.log_lines)
    (warning,) = (line for line in vehicle.log_lines if "spans not accepted" in line)
    assert "Connection refused" in warning
    assert any("sent=0 lost=" in line for line in vehicle.log_lines)


@pytest.mark.parametrize("options", [{"otel_share": 0.5}, {"otel_share": 2, "otel": "http://h:1"}])
def test_a_wrong_share_is_refused(options: dict[str, Any]) -> None:
    """A share without a receiver would trace nothing, silently."""
    with pytest.raises(click.UsageError, match="otel_share"):
        override(EdgeConfig(), options)


@pytest.mark.parametrize(
    "url",
    ["", "host:4318", "ftp://host", "http://", "http://u:p@host", "http://host:0", "http://h/?a=1", "http://h:99999"],
)
def test_a_wrong_url_is_refused(url: str) -> None:
    """Before anything is connected."""
    with pytest.raises(click.UsageError, match="receiver of traces"):
        override(EdgeConfig(), {"otel": url})


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

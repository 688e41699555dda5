"""A run with a live view, end to end: the viewer gets what the vehicle has, and costs the run no frame."""

import io
import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from edge.config import EdgeConfig
from edge.node import EdgeNode
from edge.run import play
from shared.inference.model import Model
from shared.runlog.latency_log import Outcome, read_rows
from tests.edge.conftest import log_lines
from tests.edge.view.watching import FoxgloveReader, processes
from tests.pipeline.rig import pictures, worker

__all__ = ["log_lines"]

LogLines = Callable[[], list[dict[str, Any]]]


def _run(url: str, source: Path, out: Path, call: dict[str, Any], **options: Any) -> list[Outcome]:
    """Plays in a closed loop; returns the outcomes. `call`: further arguments of `play`."""
    config = EdgeConfig(broker=url, model="tiny", vehicle=out.name, closed_loop=True, sinks=(), out=out, **options)
    assert play(str(source), config, Console(file=io.StringIO()), **call).faults == []
    return [Outcome(row["outcome"]) for row in read_rows(out)]


def test_a_viewer_gets_results_outputs_and_totals(
    mosquitto_url: str, model: Model, tmp_path: Path, log_lines: LogLines
) -> None:
    """It connects while the run goes on, and the run ends when it has seen everything."""
    messages: list[tuple[str, int, bytes]] = []

    def read(node: EdgeNode) -> None:
        try:
            (line,) = [line for line in log_lines() if line["event"] == "view ready"]
            reader = FoxgloveReader(line["address"])
            wanted = {"/frames", "/latency", "/age", "/pictures-20/result/mask", "/pictures-20/presented/mask"}
            reader.read_until(lambda it: it.topics() >= wanted)
            messages.extend(reader.messages)
        finally:
            node.stop()

    def begin(node: EdgeNode) -> None:
        threading.Thread(target=read, args=(node,)).start()

    with worker(mosquitto_url, model):
        call = {"on_begin": begin}
        outcomes = _run(
            mosquitto_url,
            pictures(tmp_path, 20),
            tmp_path / "seen",
            call,
            view="foxglove",
            present="hold",
            loop=True,
        )
    assert set(outcomes) <= {Outcome.ANSWERED, Outcome.DROPPED}
    totals = [json.loads(data) for topic, _, data in messages if topic == "/frames"]
    assert 0 < totals[-1]["answered"] <= len(outcomes)


def test_every_frame_is_answered_when_the_viewer_hangs(mosquitto_url: str, model: Model, tmp_path: Path) -> None:
    """The run ends in order, and leaves no thread."""
    hit = threading.Event()

    def on_result(_: Any) -> None:
        if not hit.is_set():
            hit.set()
            for process in processes():
                process.send_signal(signal.SIGSTOP)

    with worker(mosquitto_url, model):
        out = tmp_path / "hit"
        outcomes = _run(mosquitto_url, pictures(tmp_path, 60), out, {"on_result": on_result}, view="rerun")
    assert outcomes == [Outcome.ANSWERED] * 60

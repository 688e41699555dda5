"""`skylane edge play` over every transport without a broker: masks, logs, and failures of workers."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from rich.console import Console

from edge.config import EdgeConfig
from edge.run import run
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from shared.inference.model import Model
from shared.network.endpoint import free_ports
from shared.runlog.latency_log import Outcome, read_rows
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import (
    HEIGHT,
    WAIT_S,
    WIDTH,
    Rows,
    check,
    check_masks,
    count_outcomes,
    memory_bus,
    pictures,
    serving,
)

DIRECT = ("grpc", "tfs-grpc", "oip-grpc", "oip-rest", "tfs-rest")


def played(
    source: Path,
    out: Path,
    transport: str,
    addresses: Sequence[str],
    on_ready: Callable[[], None] = lambda: None,
    **more: Any,
) -> tuple[int, Rows]:
    """Plays a folder over a transport in a closed loop; returns the exit code and the rows, which are checked."""
    config = EdgeConfig.model_validate(
        {
            "transport": transport,
            "worker_addresses": addresses,
            "vehicle": "car",
            "model": "tiny",
            "out": out,
            "closed_loop": True,
            "codec": "raw",
            **more,
        }
    )
    printed = StringIO()
    code = run(str(source), config, Console(file=printed, width=160), on_ready=on_ready)
    rows = list(read_rows(out))
    check(rows)
    manifest = read_manifest(out)
    assert manifest["frames_read"] == sum(manifest["outcomes"].values()) == len(rows), printed.getvalue()
    return code, rows


@pytest.mark.parametrize("transport", DIRECT)
def test_every_transport_returns_exactly_the_models_masks(transport: str, model: Model, tmp_path: Path) -> None:
    """The log has the stages of the cloud and error bounds of the clocks, as over MQTT."""
    out = tmp_path / "car"
    with memory_bus() as bus, serving(lambda _: bus, model, grpc="127.0.0.1:0", http="127.0.0.1:0") as node:
        address = f"127.0.0.1:{node.ports['grpc' if transport.endswith('grpc') else 'http']}"
        code, rows = played(pictures(tmp_path, 20), out, transport, [address])
    assert code == 0
    assert count_outcomes(rows) == {("answered", ""): 20}
    assert {row["clock_error_ms"] != "" for row in rows} == {True}
    check_masks(out, model, 20)


def answered_by(rows: Rows, worker: str) -> int:
    """Counts the frames that a worker has answered."""
    return sum((row["outcome"], row["worker"]) == (Outcome.ANSWERED, worker) for row in rows)


@pytest.mark.mosquitto
@pytest.mark.parametrize("transport", ["grpc", "oip-rest"])
def test_no_frame_is_lost_while_one_of_two_workers_lives(transport: str, mosquitto_url: str, tmp_path: Path) -> None:
    """It gets the frames of the other one, and all later ones; when it dies too, every further frame has its row."""
    out, model = tmp_path / "car", f"instant-{uuid4().hex[:6]}"
    has_ended = threading.Event()
    before: list[Rows] = []  # The rows when both were alive, and when one was.
    with ExitStack() as stack:
        workers = {}
        for name, port in zip(("one", "two"), free_ports(2), strict=True):
            address = f"127.0.0.1:{port}"
            settings = NullWorkerSettings(
                f"{name}-{model}", model, HEIGHT, WIDTH, 20.0,
                grpc=address if transport == "grpc" else None, http=None if transport == "grpc" else address,
            )  # fmt: skip
            workers[address] = stack.enter_context(NullWorkerProcess(mosquitto_url, settings))
        one, two = workers.values()

        def wait_for(holds: Callable[[Rows], bool]) -> None:
            rows: Rows = []
            while not holds(rows) and not has_ended.wait(0.02):
                rows = list(read_rows(out))
            before.append(rows)

        def kill() -> None:
            wait_for(lambda rows: min(answered_by(rows, each.name) for each in (one, two)) >= 5)
            one.kill()
            wait_for(lambda rows: len(rows) > 20 and {row["worker"] for row in rows[-20:]} == {two.name})
            two.kill()
            wait_for(lambda rows: any(row["reason"] == "no_worker" for row in rows))
            if not has_ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

        killer = threading.Thread(target=kill, name="killer")
        try:
            options: dict[str, Any] = {"model": model, "loop": True, "answer_timeout_s": 5.0}
            _, rows = played(pictures(tmp_path, 40), out, transport, tuple(workers), killer.start, **options)
        finally:
            has_ended.set()
            killer.join(WAIT_S)
    assert set(count_outcomes(before[1])) == {("answered", "")}
    outcomes = count_outcomes(rows)
    assert outcomes["dropped", "no_worker"] > 0
    assert {outcome for outcome, _ in outcomes} <= {"answered", "dropped", "lost"}

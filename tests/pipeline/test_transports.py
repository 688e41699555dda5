"""`skylane edge play` over every transport without a broker: masks, logs, and failures of workers."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from edge.config import EdgeConfig
from edge.run import run
from shared.inference.model import Model
from shared.runlog.latency_log import Outcome, read_rows
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.gateway_worker import GatewayWorkerProcess
from tests.pipeline.rig import WAIT_S, Rows, check, check_masks, count_outcomes, memory_bus, pictures, serving

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


class Killer(threading.Thread):
    """Kills a worker once the rows of a run are `enough`, and ends the run when `is_over`."""

    def __init__(
        self, out: Path, kill: Callable[[], None], *, enough: Callable[[Rows], bool], is_over: Callable[[Rows], bool]
    ) -> None:
        super().__init__(name="killer")
        self.has_ended = threading.Event()  # The run has ended.
        self._out, self._kill, self._enough, self._is_over = out, kill, enough, is_over

    def run(self) -> None:
        """See Thread."""
        self._wait_for(self._enough)
        self._kill()
        self._wait_for(self._is_over)
        if not self.has_ended.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def _wait_for(self, holds: Callable[[Rows], bool]) -> None:
        while not holds(list(read_rows(self._out))) and not self.has_ended.wait(0.02):
            pass


def played_with_a_death(
    killer: Killer, source: Path, out: Path, transport: str, addresses: Sequence[str], **settings: Any
) -> tuple[int, Rows]:
    """Plays like `played`, in a loop until the killer ends it."""
    try:
        return played(source, out, transport, addresses, killer.start, loop=True, **settings)
    finally:
        killer.has_ended.set()
        killer.join(WAIT_S)


def answered_by(rows: Rows, worker: str) -> int:
    """Counts the frames that a worker has answered."""
    return sum((row["outcome"], row["worker"]) == (Outcome.ANSWERED, worker) for row in rows)


@pytest.mark.parametrize("transport", ["grpc", "oip-rest"])
def test_no_frame_is_lost_when_one_of_two_workers_dies(transport: str, tmp_path: Path) -> None:
    """The other worker gets its frames, and all later ones."""
    out = tmp_path / "car"
    with ExitStack() as stack:
        workers = [stack.enter_context(GatewayWorkerProcess(name)) for name in ("one", "two")]
        addresses = [worker.grpc if transport == "grpc" else worker.http for worker in workers]
        killer = Killer(
            out,
            workers[0].kill,
            enough=lambda rows: min(answered_by(rows, "one"), answered_by(rows, "two")) >= 5,
            is_over=lambda rows: {row["worker"] for row in rows[-20:]} == {"two"},
        )
        code, rows = played_with_a_death(killer, pictures(tmp_path, 60), out, transport, addresses)
    assert code == 0
    assert set(count_outcomes(rows)) <= {("answered", ""), ("dropped", "stopped")}
    assert {row["worker"] for row in rows if row["outcome"] == Outcome.ANSWERED} == {"one", "two"}


@pytest.mark.parametrize("transport", ["grpc", "tfs-rest"])
def test_when_the_only_worker_dies_every_frame_has_its_row(transport: str, tmp_path: Path) -> None:
    """Frames that it held time out; later ones are dropped."""
    out = tmp_path / "car"
    with GatewayWorkerProcess("one") as worker:
        address = worker.grpc if transport == "grpc" else worker.http
        killer = Killer(
            out,
            worker.kill,
            enough=lambda rows: answered_by(rows, "one") >= 10,
            is_over=lambda rows: any(row["reason"] == "no_worker" for row in rows),
        )
        _, rows = played_with_a_death(killer, pictures(tmp_path, 40), out, transport, [address], answer_timeout_s=1.0)
    outcomes = count_outcomes(rows)
    assert outcomes["answered", ""] >= 10
    assert outcomes["dropped", "no_worker"] > 0
    assert {outcome for outcome, _ in outcomes} <= {"answered", "dropped", "lost"}

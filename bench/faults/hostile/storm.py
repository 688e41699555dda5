"""Sends broken messages to a node in this process: `python -m bench.faults.hostile.storm worker --count N --seed S`.

Prints one line of JSON, a `Toll`. The node must have answered or counted every delivered message.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import psutil

from bench.faults.hostile.inline_bus import InlineBus
from bench.faults.hostile.messages import Publication, answers_to, for_vehicle, for_worker
from bench.load.null_worker import MODEL, NullWorkerSettings, null_model
from cloud.node import CloudNode, WorkerSettings
from edge.receiver import Receiver
from edge.reliability.ledger import FrameRecord, Ledger, LedgerSettings
from edge.reliability.worker_clocks import WorkerClocks
from edge.transports.mqtt.transport import MqttTransport
from shared import clock
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, Layout
from shared.messages.model_card import Task
from shared.runlog.latency_log import LogWriter
from shared.stages import Stage, Stamp

HEIGHT, WIDTH = 16, 24
_UNDER_WAY = 24  # Maximum messages in progress, unless the node is flooded.
_TURN = 8  # Messages between two checks of the counts.
_LOOK_S = 0.0005
_END_S = 60.0
_WARM = 0.2  # Share of messages after which memory growth is measured.

Accounted = Callable[[], Mapping[str, int]]


class StormError(SkylaneError):
    """The node did not become ready."""


@dataclass(frozen=True, slots=True)
class Toll:
    """The result of a storm. `accounted` has the number of answered messages and of counted ones by name."""

    came: int
    untaken: int  # Messages on topics without subscription; a broker would not deliver them.
    accounted: Mapping[str, int]
    unaccounted: int
    seconds: float
    rss_mb: float  # Resident memory at the end.
    rss_growth_mb: float  # Growth after the first fifth of the messages.


class _Storm:
    """Delivers messages to a node and compares its counts with them."""

    def __init__(self, bus: InlineBus, accounted: Accounted, *, floods: bool) -> None:
        self._bus = bus
        self._accounted = accounted
        self._floods = floods

    def blow(self, publications: Iterator[Publication], count: int) -> Toll:
        """Delivers `count` messages, a few at a time, or with `floods` as fast as possible."""
        process = psutil.Process()
        began_s = time.monotonic()
        came = untaken = 0
        warm_bytes = process.memory_info().rss
        for number, each in enumerate(islice(publications, count)):
            if self._bus.deliver(each.topic, each.payload, each.properties):
                came += 1
            else:
                untaken += 1
            if not self._floods and number % _TURN == 0:
                self._wait(came, _UNDER_WAY, _END_S)
            if number == int(count * _WARM):
                warm_bytes = process.memory_info().rss
        self._wait(came, 0, _END_S)
        rss_bytes = process.memory_info().rss
        accounted = self._accounted()
        return Toll(
            came,
            untaken,
            accounted,
            came - sum(accounted.values()),
            time.monotonic() - began_s,
            rss_bytes / 1e6,
            (rss_bytes - warm_bytes) / 1e6,
        )

    def _wait(self, came: int, under_way: int, limit_s: float) -> None:
        """Waits until at most `under_way` messages are neither answered nor counted, or for `limit_s`."""
        until_s = time.monotonic() + limit_s
        while came - sum(self._accounted().values()) > under_way and time.monotonic() < until_s:
            time.sleep(_LOOK_S)


def upon_worker(count: int, seed: int, *, floods: bool = False) -> Toll:
    """Sends broken frames, retries, probes and control requests to a worker.

    Raises:
        BaseException: the exception that ended the worker.
    """
    bus = InlineBus()
    node = CloudNode(
        [null_model(NullWorkerSettings(height=HEIGHT, width=WIDTH))], WorkerSettings(worker="worker", session="s1")
    )
    ready = threading.Event()
    raised: list[BaseException] = []

    def serve() -> None:
        try:
            node.serve(bus, lambda: None, ready.set)
        except BaseException as error:  # noqa: BLE001 (raised again below)
            raised.append(error)
            ready.set()

    def accounted() -> dict[str, int]:
        if raised:
            raise raised[0]
        published = {f"{kind} published": bus.published[kind] for kind in ("masks", "echoes", "replies")}
        counted = {name: number for name, number in node.counts.items() if name in _UNANSWERED}
        return published | counted

    thread = threading.Thread(target=serve, name="stormed-worker")
    thread.start()
    try:
        if not ready.wait(_END_S):
            raise StormError("the worker did not become ready")
        messages = for_worker(seed, worker="worker", model=MODEL, vehicle="car", height=HEIGHT, width=WIDTH)
        return _Storm(bus, accounted, floods=floods).blow(messages, count)
    finally:
        node.stop()
        thread.join()
        if raised:
            raise raised[0]


# Counts of messages that a worker does not answer; messages in other counts are answered as well.
_UNANSWERED = frozenset(
    (
        *("unreadable", "frame_topic", "frame_model", "frame_retained", "frame_refusals_full"),
        *("probe_unreadable", "probe_too_often", "probe_topic", "control_refused_unreadable", "control_refused_busy"),
    )
)


def upon_vehicle(count: int, seed: int, folder: Path) -> Toll:
    """Sends broken replies and clock replies to a vehicle, a few of them valid; its log is in `folder`."""
    bus, stop = InlineBus(), threading.Event()
    transport = MqttTransport(bus, vehicle="car", session="s1", model=MODEL)
    with LogWriter(folder) as log:
        clocks = WorkerClocks()
        ledger = Ledger(log, LedgerSettings("car", "s1", MODEL), clocks=clocks)
        receiver = Receiver(transport, ledger, lambda *_: None, stop, Task.SEGMENTATION)

        def accounted() -> dict[str, int]:
            tally = ledger.counts()
            outcomes = {outcome.value: number for outcome, number in tally.outcomes.items()}
            return {**tally.ignored_answers, **outcomes, "too_many": transport.replies_dropped}

        def messages() -> Iterator[Publication]:
            """Yields messages for a frame in flight; when it has ended, for the next one."""
            while True:
                journey = _sent(ledger)
                answers = answers_to(journey.id, journey.stamps, HEIGHT, WIDTH)
                yield from islice(
                    for_vehicle(seed + journey.id.sequence, vehicle="car", worker="worker", answers=answers), 50
                )

        threads = [
            threading.Thread(target=receiver.run, name="receiver"),
            threading.Thread(target=transport.probe_clocks, args=(clocks, stop), name="clocks"),
        ]
        for thread in threads:
            thread.start()
        try:
            return _Storm(bus, accounted, floods=False).blow(messages(), count)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def _sent(ledger: Ledger) -> FrameRecord:
    """Returns a frame in flight."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    now_ns = clock.now_ns()
    journey = ledger.begin(Frame(pixels, Layout.RGB8, "/left", 0, 0, now_ns, 0), now_ns)
    for stage in (Stage.TAKEN, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED, Stage.SENT):
        journey.times[stage] = clock.now_ns()
    journey.stamps = tuple(Stamp(stage.value, "edge/car/s1", at_ns) for stage, at_ns in journey.times.items())
    ledger.open(journey)
    return journey


@click.command()
@click.argument("node", type=click.Choice(["worker", "vehicle"]))
@click.option("--count", type=click.IntRange(1), required=True)
@click.option("--seed", type=click.IntRange(0), required=True)
@click.option("--flood", is_flag=True, help="Send as fast as possible; the worker must refuse what it cannot hold.")
def main(node: str, count: int, seed: int, *, flood: bool) -> None:
    """Sends broken messages to a node and prints the result."""
    if node == "worker":
        toll = upon_worker(count, seed, floods=flood)
    else:
        with TemporaryDirectory(prefix="skylane-storm-") as folder:
            toll = upon_vehicle(count, seed, Path(folder) / "run")
    click.echo(json.dumps(asdict(toll)))


if __name__ == "__main__":
    main()

"""A storm of broken messages upon one node in this process: `python -m bench.faults.hostile.storm worker --count N --seed S`.

Prints one line of JSON, a `Toll`. Every message that came must have been answered or counted by the node.
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
from edge.reliability.ledger import FrameRecord, Ledger
from edge.reliability.worker_clocks import Clocks
from edge.transports.mqtt.transport import MqttTransport
from shared import clock
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, Layout
from shared.messages.model_card import Task
from shared.runlog.latency_log import LogWriter
from shared.stages import Stage, Stamp

HEIGHT, WIDTH = 16, 24
_UNDER_WAY = 24  # Messages that a node may have in hand; more only where it is flooded.
_TURN = 8  # Messages between two looks at the accounts.
_LOOK_S = 0.0005
_END_S = 60.0
_WARM = 0.2  # Of the messages: memory is compared from there on.

Accounted = Callable[[], Mapping[str, int]]


class StormError(SkylaneError):
    """A node that was to be stormed did not get ready."""


@dataclass(frozen=True, slots=True)
class Toll:
    """What a storm came to. `accounted`: how many messages were answered, and how many counted under which name."""

    came: int
    untaken: int  # Of a topic that the node had not subscribed to: no broker would have sent it.
    accounted: Mapping[str, int]
    unaccounted: int
    seconds: float
    rss_mb: float  # At the end.
    rss_growth_mb: float  # Since a fifth of the messages had come.


class _Storm:
    """Hands messages to a node, and holds its accounts against them."""

    def __init__(self, bus: InlineBus, accounted: Accounted, *, floods: bool) -> None:
        self._bus = bus
        self._accounted = accounted
        self._floods = floods

    def blow(self, publications: Iterator[Publication], count: int) -> Toll:
        """Deliver so many; with `floods` as fast as it goes, else a few at a time."""
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
        """Until no more than so many are neither answered nor counted; what never is shows in the toll."""
        until_s = time.monotonic() + limit_s
        while came - sum(self._accounted().values()) > under_way and time.monotonic() < until_s:
            time.sleep(_LOOK_S)


def upon_worker(count: int, seed: int, *, floods: bool = False) -> Toll:
    """Storm a worker: frames, retries, probes, control requests.

    Raises:
        BaseException: whatever ended the worker.
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
            raise StormError("the worker did not get ready")
        messages = for_worker(seed, worker="worker", model=MODEL, vehicle="car", height=HEIGHT, width=WIDTH)
        return _Storm(bus, accounted, floods=floods).blow(messages, count)
    finally:
        node.stop()
        thread.join()
        if raised:
            raise raised[0]


# What a worker counts and does not answer; everything else that it counts it has answered as well.
_UNANSWERED = frozenset(
    (
        *("unreadable", "frame_topic", "frame_model", "frame_retained", "frame_refusals_full"),
        *("probe_unreadable", "probe_too_often", "probe_topic", "control_refused_unreadable", "control_refused_busy"),
    )
)


def upon_vehicle(count: int, seed: int, folder: Path) -> Toll:
    """Storm a vehicle with answers and echoes, of which some few are good; its log is written to `folder`."""
    bus, stop = InlineBus(), threading.Event()
    transport = MqttTransport(bus, vehicle="car", session="s1", model=MODEL)
    with LogWriter(folder) as log:
        clocks = Clocks()
        ledger = Ledger(log, vehicle="car", session="s1", model=MODEL, clocks=clocks)
        receiver = Receiver(transport, ledger, lambda *_: None, stop, Task.SEGMENTATION)

        def accounted() -> dict[str, int]:
            tally = ledger.tally()
            outcomes = {outcome.value: number for outcome, number in tally.outcomes.items()}
            return {**tally.ignored_answers, **outcomes, "too_many": transport.replies_dropped}

        def messages() -> Iterator[Publication]:
            """Of a frame under way; when it has ended, of the next one."""
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
    """A frame on its way."""
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
@click.option("--flood", is_flag=True, help="As fast as it goes: the worker must refuse what it cannot hold.")
def main(node: str, count: int, seed: int, *, flood: bool) -> None:
    """Storm a node and print the toll."""
    if node == "worker":
        toll = upon_worker(count, seed, floods=flood)
    else:
        with TemporaryDirectory(prefix="skylane-storm-") as folder:
            toll = upon_vehicle(count, seed, Path(folder) / "run")
    click.echo(json.dumps(asdict(toll)))


if __name__ == "__main__":
    main()

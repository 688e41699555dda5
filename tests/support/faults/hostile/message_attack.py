"""Sends broken messages to a node in this process, a `Child` that replies with an `AttackResult`.

The node must have answered or counted every delivered message.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil

from cloud.config import CloudConfig
from cloud.node import CloudNode
from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.ledger import Ledger
from edge.receiver import Receiver
from edge.transports.mqtt_transport import MqttTransport
from edge.workers.worker_clocks import WorkerClocks
from ops.processes.child import reply, settings
from ops.processes.null_worker import MODEL, NullWorkerSettings, null_model
from shared import clock
from shared.imaging.frames import Frame, Layout
from shared.runlog.latency_log import LogWriter, Outcome
from shared.stages import Stage, Stamp
from tests.support.faults.hostile.inline_bus import InlineBus
from tests.support.faults.hostile.messages import Publication, answers_to, for_vehicle, for_worker
from tests.support.gateway import running

HEIGHT, WIDTH = 16, 24
_MAX_IN_PROGRESS = 24  # Maximum messages in progress, unless the node is flooded.
_CHECK_EVERY = 8  # Messages between two checks of the counts.
_POLL_S = 0.0005
_WAIT_S = 60.0
_WARM_UP_SHARE = 0.2  # Share of messages that are sent before memory growth is measured.

Accounted = Callable[[], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class AttackResult:
    """The result of an attack. `accounted` has the number of answered messages and of counted ones by name."""

    delivered: int
    unsubscribed: int  # Messages on topics without subscription; a broker would not deliver them.
    accounted: Mapping[str, int]
    unaccounted: int
    seconds: float
    rss_mb: float  # Resident memory at the end.
    rss_growth_mb: float  # Growth after the first fifth of the messages.


def _send(
    bus: InlineBus, accounted: Accounted, publications: Iterator[Publication], count: int, *, floods: bool = False
) -> AttackResult:
    """Delivers `count` messages to a node, a few at a time or with `floods` as fast as possible; compares its counts."""
    process = psutil.Process()
    began_s = time.monotonic()
    delivered = unsubscribed = 0
    warm_bytes = process.memory_info().rss

    def wait(in_progress: int) -> None:
        """Waits until at most `in_progress` messages are neither answered nor counted, or for a minute."""
        until_s = time.monotonic() + _WAIT_S
        while delivered - sum(accounted().values()) > in_progress and time.monotonic() < until_s:
            time.sleep(_POLL_S)

    for number, each in enumerate(islice(publications, count)):
        if bus.deliver(each.topic, each.payload, each.properties):
            delivered += 1
        else:
            unsubscribed += 1
        if not floods and number % _CHECK_EVERY == 0:
            wait(_MAX_IN_PROGRESS)
        if number == int(count * _WARM_UP_SHARE):
            warm_bytes = process.memory_info().rss
    wait(0)
    rss_bytes, counts = process.memory_info().rss, accounted()
    return AttackResult(
        delivered,
        unsubscribed,
        counts,
        delivered - sum(counts.values()),
        time.monotonic() - began_s,
        rss_bytes / 1e6,
        (rss_bytes - warm_bytes) / 1e6,
    )


def attack_worker(count: int, seed: int, *, floods: bool = False) -> AttackResult:
    """Sends broken frames, retries, probes and control requests to a worker.

    Raises:
        BaseException: the exception that ended the worker.
    """
    bus = InlineBus()
    node = CloudNode(
        [null_model(NullWorkerSettings(height=HEIGHT, width=WIDTH))], CloudConfig(worker="worker"), session="s1"
    )
    messages = for_worker(seed, worker="worker", model=MODEL, vehicle="car", height=HEIGHT, width=WIDTH)

    def accounted() -> dict[str, int]:
        published = {f"{kind} published": bus.published[kind] for kind in ("masks", "echoes", "replies")}
        counted = {name: number for name, number in node.counts.items() if name in _UNANSWERED}
        return published | counted

    with running(node, bus):
        return _send(bus, accounted, messages, count, floods=floods)


# Counts of messages that a worker does not answer; messages in other counts are answered as well.
_UNANSWERED = frozenset(
    (
        *("unreadable", "frame_topic", "frame_model", "frame_retained", "frame_refusals_full"),
        *("probe_unreadable", "probe_too_often", "probe_topic", "control_refused_unreadable", "control_refused_busy"),
    )
)


def attack_vehicle(count: int, seed: int, folder: Path) -> AttackResult:
    """Sends broken replies and clock replies to a vehicle, a few of them valid; its log is in `folder`."""
    bus, stop, config = InlineBus(), threading.Event(), EdgeConfig(vehicle="car", model=MODEL)
    transport = MqttTransport(bus, config, "s1")
    with LogWriter(folder) as log:
        clocks = WorkerClocks()
        ledger = Ledger(log, config, "s1", clocks=clocks)
        card = null_model(NullWorkerSettings(height=HEIGHT, width=WIDTH)).card
        receiver = Receiver(transport, ledger, stop, card)

        def accounted() -> dict[str, int]:
            """Returns the counts of messages; a frame is lost without a message."""
            counts = ledger.counts()
            outcomes = {each.value: number for each, number in counts.outcomes.items() if each is not Outcome.LOST}
            return {**counts.ignored_answers, **outcomes, "too_many": transport.replies.dropped}

        def messages() -> Iterator[Publication]:
            """Yields messages for a frame in flight; when it has ended, for the next one."""
            while True:
                record = _sent(ledger)
                answers = answers_to(record.id, record.stamps, card)
                yield from islice(
                    for_vehicle(seed + record.id.sequence, vehicle="car", worker="worker", answers=answers), 50
                )

        threads = [
            threading.Thread(target=receiver.run, name="receiver"),
            threading.Thread(target=transport.probe_clocks, args=(clocks, stop), name="clocks"),
        ]
        for thread in threads:
            thread.start()
        try:
            return _send(bus, accounted, messages(), count)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def _sent(ledger: Ledger) -> FrameRecord:
    """Returns a frame in flight."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    now_ns = clock.now_ns()
    record = ledger.begin(Frame(pixels, Layout.RGB8, "/left", 0, 0, now_ns, 0), now_ns)
    for stage in (Stage.TAKEN, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED, Stage.SENT):
        record.times[stage] = clock.now_ns()
    record.stamps = tuple(Stamp(stage.value, "edge/car/s1", at_ns) for stage, at_ns in record.times.items())
    ledger.open(record)
    return record


def main(*, node: str, count: int, seed: int, floods: bool = False) -> None:
    """Sends broken messages to a "worker" or a "vehicle", and replies with the result."""
    if node == "worker":
        result = attack_worker(count, seed, floods=floods)
    else:
        with TemporaryDirectory(prefix="skylane-attack-") as folder:
            result = attack_vehicle(count, seed, Path(folder) / "run")
    reply(asdict(result))


if __name__ == "__main__":
    main(**settings())

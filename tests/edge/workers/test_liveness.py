"""Detection of workers that hang."""

from dataclasses import dataclass, field

import pytest

from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_directory import LivenessMonitor, WorkerDirectory, WorkerWatch
from edge.workers.worker_stats import WorkerStats
from shared import clock
from shared.clock import Exchange
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from tests.edge.samples import CARD

S = 10**9
WORKERS = (("w", "s1"), ("x", "s2"))


@dataclass
class Scene:
    """Two workers, a broker, and a clock that the test moves."""

    now_ns: int = 1000 * S
    received_ns: int = 1000 * S
    pings: int = 0
    stats: WorkerStats = field(default_factory=WorkerStats)
    clocks: WorkerClocks = field(default_factory=WorkerClocks)

    def __post_init__(self) -> None:
        """Lets both workers reply to a clock probe."""
        self.workers = WorkerDirectory(CARD.name)
        watch = WorkerWatch(self.workers, self.clocks, self.stats)
        self.monitor = LivenessMonitor(watch, last_received_ns=lambda: self.received_ns, ping=self.ping)
        for name, session in WORKERS:
            self.join(name, session)
            self.reply_to_probe(name, session)

    def join(self, name: str, session: str) -> None:
        """Brings a worker online."""
        self.workers.update(name, pack_status(NodeStatus(NodeState.ONLINE, session, 4, (CARD,))))

    def ping(self) -> None:
        """Counts pings of the broker."""
        self.pings += 1

    def reply_to_probe(self, name: str, session: str) -> None:
        """Adds a clock reply of a worker."""
        self.clocks.add_probe(
            f"cloud/{name}/{session}", Exchange(self.now_ns - 4, self.now_ns - 3, self.now_ns - 2, self.now_ns)
        )

    def unresponsive_after(self, seconds: float, *, link_works: bool = True) -> bool:
        """Moves the clock, and returns whether all workers count as unresponsive then."""
        self.now_ns += round(seconds * S)
        if link_works:
            self.received_ns = self.now_ns
        return self.monitor.all_unresponsive()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A scene in which both workers have just replied to a clock probe."""
    made = Scene()
    monkeypatch.setattr(clock, "now_ns", lambda: made.now_ns)
    return made


def test_hanging_workers_are_detected_before_the_broker_does(scene: Scene) -> None:
    """The broker takes one and a half keepalives: 22 seconds in which frames would be lost."""
    assert not scene.unresponsive_after(9.9)
    assert not scene.unresponsive_after(0.2)
    assert scene.unresponsive_after(1.0)


def test_a_sign_of_one_worker_is_enough(scene: Scene) -> None:
    """A clock reply or a result resets the state, even after all workers counted as unresponsive."""
    scene.unresponsive_after(8.0)
    scene.reply_to_probe("x", "s2")
    assert not scene.unresponsive_after(9.0)
    scene.unresponsive_after(2.0)
    assert scene.unresponsive_after(1.0)
    scene.stats.add_reply("w", scene.now_ns - S, scene.now_ns)
    assert not scene.unresponsive_after(1.0)
    assert not scene.unresponsive_after(8.0)


def test_a_dead_link_does_not_count_against_the_workers(scene: Scene) -> None:
    """The monitor pings the broker once a second; without a reply, frames are sent and time out."""
    assert not scene.unresponsive_after(11.0, link_works=False)
    assert not scene.unresponsive_after(0.1, link_works=False)
    assert scene.pings == 1
    assert not scene.unresponsive_after(5.0, link_works=False)
    assert scene.pings == 2


def test_clock_replies_may_arrive_shortly_after_the_link_recovers(scene: Scene) -> None:
    """After an outage, messages arrive one by one; no frame is dropped in between."""
    assert not scene.unresponsive_after(14.0, link_works=False)
    assert not scene.unresponsive_after(0.1)
    assert not scene.unresponsive_after(0.5)
    scene.reply_to_probe("w", "s1")
    assert not scene.unresponsive_after(1.0)


def test_a_worker_that_never_replied_to_a_probe_does_not_count_as_unresponsive(scene: Scene) -> None:
    """A foreign worker may not support probes, and a large model may be slow."""
    assert not scene.unresponsive_after(60.0)
    assert scene.unresponsive_after(1.0)
    scene.join("silent", "s3")
    assert not scene.unresponsive_after(0.0)
    for name in ("silent", "w", "x"):
        scene.workers.left(name)
    assert not scene.unresponsive_after(0.0)

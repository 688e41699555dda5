from dataclasses import dataclass, field

import pytest

from edge.reliability.liveness import Silence
from edge.reliability.worker_clocks import Clocks
from edge.reliability.worker_stats import WorkerStats
from shared import clock
from shared.clock import Exchange

S = 10**9
WORKERS = (("w", "s1"), ("x", "s2"))


@dataclass
class Scene:
    """Workers, a broker, and a clock that stands until it is moved."""

    now_ns: int = 1000 * S
    last_received_ns: int = 1000 * S
    asked: int = 0
    pulse: WorkerStats = field(default_factory=WorkerStats)
    clocks: Clocks = field(default_factory=Clocks)

    def __post_init__(self) -> None:
        """Both workers have just echoed."""
        self.silence = Silence(self.pulse, self.clocks, last_received_ns=lambda: self.last_received_ns, ask=self.ask)
        for name, session in WORKERS:
            self.echo(name, session)

    def ask(self) -> None:
        """The broker is asked for a sign."""
        self.asked += 1

    def echo(self, name: str, session: str) -> None:
        """A worker echoes a probe."""
        self.clocks.probed(
            f"cloud/{name}/{session}", Exchange(self.now_ns - 4, self.now_ns - 3, self.now_ns - 2, self.now_ns)
        )

    def after(self, seconds: float, *, hears: bool = True) -> bool:
        """Whether all are silent, so much later."""
        self.now_ns += round(seconds * S)
        if hears:
            self.last_received_ns = self.now_ns
        return self.silence.is_total(WORKERS)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A moment at which all is well."""
    made = Scene()
    monkeypatch.setattr(clock, "now_ns", lambda: made.now_ns)
    return made


def test_workers_that_stand_still_are_known_before_the_broker_knows(scene: Scene) -> None:
    """It waits for one and a half keepalives: 22 seconds in which frames would be sent to nobody."""
    assert not scene.after(9.9)
    assert not scene.after(0.2)
    assert scene.after(1.0)


def test_a_sign_of_one_worker_is_enough(scene: Scene) -> None:
    """An answer or an echo, before or after all were thought to stand still."""
    scene.after(8.0)
    scene.echo("x", "s2")
    assert not scene.after(9.0)
    scene.after(2.0)
    assert scene.after(1.0)
    scene.pulse.answered("w", scene.now_ns - S, scene.now_ns)
    assert not scene.after(1.0)
    assert not scene.after(8.0)


def test_a_link_that_carries_nothing_says_nothing_of_the_workers(scene: Scene) -> None:
    """The broker is asked, once a second; without its word the frames are sent, and end by time."""
    assert not scene.after(11.0, hears=False)
    assert not scene.after(0.1, hears=False)
    assert scene.asked == 1
    assert not scene.after(5.0, hears=False)
    assert scene.asked == 2


def test_a_link_that_carries_again_brings_one_thing_after_the_other(scene: Scene) -> None:
    """The broker's word comes first, the echoes a moment later: no frame is given up in between."""
    assert not scene.after(14.0, hears=False)
    assert not scene.after(0.1)
    assert not scene.after(0.5)
    scene.echo("w", "s1")
    assert not scene.after(1.0)


def test_a_worker_that_never_echoed_may_be_slow(scene: Scene) -> None:
    """One of another make answers no probes, and a large model takes its time."""
    assert not scene.after(60.0)
    assert scene.after(1.0)
    assert not scene.silence.is_total((*WORKERS, ("silent", "s3")))
    assert not scene.silence.is_total(())

"""Spreading by load, with nodes that are made up."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.upload.client import Caller, ImageRefusedError, Told, WorkerBusyError, WorkerLostError
from edge.upload.dispatcher import Ended, Spread

WAIT_S = 60.0
PICTURES = [Path(f"{number}.png") for number in range(20)]


class Node:
    """Does as it is told with each picture."""

    def __init__(self, act: Callable[[Path], None] = lambda _: None) -> None:
        self._act = act

    def ask(self, picture: Path) -> Told:
        """See Caller."""
        self._act(picture)
        return Told({}, 1, 1.0, 1.0)

    def close(self) -> None:
        """See Caller."""


def spread(nodes: dict[str, Callable[[], Caller]]) -> tuple[Spread, list[Ended]]:
    """Send the pictures to nodes of one place each."""
    ended: list[Ended] = []
    made = Spread(PICTURES, ended.append, rest_s=0.0)
    made.run({name: [opened] for name, opened in nodes.items()})
    assert sorted(each.picture for each in ended) == sorted(PICTURES)
    return made, ended


def test_a_slow_node_gets_fewer() -> None:
    """Turn by turn, the slowest node would set the pace of all."""
    others = threading.Semaphore(0)

    def slow(_: Path) -> None:
        for _picture in PICTURES[1:]:
            assert others.acquire(timeout=WAIT_S)

    _, ended = spread({"slow": lambda: Node(slow), "quick": lambda: Node(lambda _: others.release())})
    assert Counter(each.node for each in ended) == {"slow": 1, "quick": 19}


def test_what_a_dead_node_had_is_anothers() -> None:
    """Nothing is lost with it, and it is told."""
    dead = threading.Event()

    def die(_: Path) -> None:
        dead.set()
        raise WorkerLostError("hung up")

    made, ended = spread({"dead": lambda: Node(die), "other": lambda: Node(lambda _: _wait(dead))})
    assert {each.node for each in ended if each.told} == {"other"}
    assert len([each for each in ended if each.told]) == 20
    assert made.lost == {"dead": "hung up"}


def test_a_picture_that_is_refused_is_not_sent_again() -> None:
    """Another node runs the same model."""

    def refuse(picture: Path) -> None:
        if picture == PICTURES[3]:
            raise ImageRefusedError("rejected: too small")

    _, ended = spread({"one": lambda: Node(refuse), "two": lambda: Node(refuse)})
    assert [(each.picture, each.fault) for each in ended if each.told is None] == [(PICTURES[3], "rejected: too small")]


@pytest.mark.parametrize("poisoned", [1, 3])
def test_where_no_node_is_left_the_rest_is_told_so(poisoned: int) -> None:
    """And the run ends; a picture that three nodes went away with is not tried on a fourth."""

    def die(picture: Path) -> None:
        if picture == PICTURES[0]:
            raise WorkerLostError("crashed")

    _, ended = spread({f"node-{number}": lambda: Node(die) for number in range(poisoned)})
    faults = {each.picture: each.fault for each in ended if each.told is None}
    assert "no node is left" in faults[PICTURES[0]] or "3 nodes went away" in faults[PICTURES[0]]


def test_a_node_that_never_answers_is_lost_at_once() -> None:
    """The others do its work."""

    def never() -> Caller:
        raise WorkerLostError("refused")

    made, ended = spread({"never": never, "other": Node})
    assert {each.node for each in ended} == {"other"}
    assert made.lost == {"never": "refused"}


def test_a_busy_node_is_asked_again() -> None:
    """What it had no room for is neither failed nor a reason to give it up."""
    turned_away = iter(range(5))

    def act(_: Path) -> None:
        if next(turned_away, None) is not None:
            raise WorkerBusyError("overloaded")

    made, ended = spread({"busy": lambda: Node(act)})
    assert all(each.told for each in ended)
    assert not made.lost


def test_a_node_that_is_busy_for_good_is_lost() -> None:
    """The run must end."""

    def act(_: Path) -> None:
        raise WorkerBusyError("overloaded")

    made, ended = spread({"busy": lambda: Node(act)})
    assert made.lost == {"busy": "overloaded"}
    assert {each.fault for each in ended} == {"no node is left"}


def test_a_bug_ends_the_run() -> None:
    """It must not look as if pictures had failed."""

    def bug(_: Path) -> None:
        raise KeyError("a bug of ours")

    with pytest.raises(KeyError):
        Spread(PICTURES, lambda _: None).run({"one": [lambda: Node(bug)]})


def _wait(event: threading.Event) -> None:
    assert event.wait(WAIT_S)

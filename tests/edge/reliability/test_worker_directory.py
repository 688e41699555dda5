import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from edge.reliability.worker_directory import NoWorkerError, WorkerDirectory
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import WORKER_STATUS
from shared.mqtt.bus import Delivery

WAIT_S = 60.0


def _said(worker: str, payload: bytes) -> Delivery:
    return Delivery(WORKER_STATUS.of(worker=worker), payload, 0)


def _status(state: NodeState, *cards: ModelCard) -> bytes:
    return pack_status(NodeStatus(state, "s9", 4, cards))


def test_a_worker_serves_what_it_announces_while_it_is_online(card: ModelCard) -> None:
    """A stopping worker takes no more, and one that is gone none at all."""
    workers = WorkerDirectory()
    assert not workers.serves("tiny")
    workers.announced(_said("w", _status(NodeState.ONLINE, card)))
    assert workers.serves("tiny")
    assert not workers.serves("huge")
    workers.announced(_said("w", _status(NodeState.STOPPING, card)))
    assert not workers.serves("tiny")
    workers.announced(_said("w", _status(NodeState.ONLINE, card)))
    workers.announced(_said("w", _status(NodeState.OFFLINE)))
    assert not workers.serves("tiny")


def test_the_late_will_of_a_dead_process_takes_no_worker_away(card: ModelCard) -> None:
    """Frames would be dropped, and those in flight sent again, until the one that lives has spoken once more."""
    workers = WorkerDirectory()
    workers.announced(_said("w", _status(NodeState.ONLINE, card)))
    workers.announced(_said("w", pack_status(NodeStatus(NodeState.OFFLINE, "s8"))))
    assert workers.serves("tiny")
    assert not workers.last_failure_ns("tiny")
    workers.announced(_said("w", _status(NodeState.OFFLINE)))
    assert not workers.serves("tiny")
    assert workers.last_failure_ns("tiny")


def test_after_a_reconnect_only_who_is_announced_again_is_known(card: ModelCard) -> None:
    """A broker that was killed has forgotten its workers, and they may be gone with it."""
    workers = WorkerDirectory()
    workers.announced(_said("w", _status(NodeState.ONLINE, card)))
    workers.forget()
    assert not workers.serves("tiny")
    workers.announced(_said("w", _status(NodeState.ONLINE, card)))
    assert workers.serves("tiny")


def test_another_worker_keeps_a_model_served(card: ModelCard) -> None:
    """Which of them gets a frame is the broker's to say."""
    workers = WorkerDirectory()
    for name in ("a", "b"):
        workers.announced(_said(name, _status(NodeState.ONLINE, card)))
    workers.announced(_said("a", _status(NodeState.OFFLINE)))
    assert workers.serves("tiny")


@pytest.mark.parametrize("payload", [b"", b"garbage", b"\x81\xa1v\x02"])
def test_a_broken_announcement_is_as_good_as_none(card: ModelCard, payload: bytes) -> None:
    """It runs on the network thread, where nothing may raise; an empty payload is how a retained one is removed."""
    workers = WorkerDirectory()
    workers.announced(_said("w", _status(NodeState.ONLINE, card)))
    workers.announced(_said("w", payload))
    assert not workers.serves("tiny")
    workers.announced(Delivery("skylane/v1/status/worker/a/b", b"", 0))


def test_so_many_workers_are_remembered_and_no_more(card: ModelCard) -> None:
    """Whoever may publish could announce millions."""
    workers = WorkerDirectory()
    for number in range(300):
        workers.announced(_said(f"w{number}", _status(NodeState.ONLINE, card)))
    assert len(workers._known) == 256


def test_workers_of_old_take_no_place(card: ModelCard) -> None:
    """A broker retains the last word of each: where containers name workers, hundreds of names collect in time."""
    workers = WorkerDirectory()
    for number in range(300):
        workers.announced(_said(f"old{number}", _status(NodeState.ONLINE, card)))
        workers.announced(_said(f"old{number}", _status(NodeState.OFFLINE)))
    workers.announced(_said("new", _status(NodeState.ONLINE, card)))
    assert workers.online("tiny") == [("new", "s9")]
    assert len(workers._departed) == 256
    assert workers.last_failure_ns("tiny") > 0


def test_a_card_is_waited_for(card: ModelCard) -> None:
    """Vehicle and worker are often started together."""
    workers, found = WorkerDirectory(), []
    waiting = threading.Thread(target=lambda: found.append(workers.wait_for_card("tiny", WAIT_S)))
    waiting.start()
    workers.announced(_said("w", _status(NodeState.ONLINE, replace(card, name="other"))))
    workers.announced(_said("w", _status(NodeState.ONLINE, card)))
    waiting.join(WAIT_S)
    assert found == [card]


def test_what_is_served_instead_is_told(card: ModelCard) -> None:
    """One line that says what to do."""
    workers = WorkerDirectory()
    with pytest.raises(NoWorkerError, match="no worker is online after 0 s: start one with 'skylane cloud serve'"):
        workers.wait_for_card("tiny", 0.0)
    workers.announced(_said("w", _status(NodeState.ONLINE, card)))
    with pytest.raises(NoWorkerError, match=r"no worker serves model 'tinny': did you mean tiny\?"):
        workers.wait_for_card("tinny", 0.0)


def test_who_joins_leaves_and_changes_its_models_is_logged(
    card: ModelCard, log_lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """An operator sees why frames find no worker, or another model; a repeated announcement is no news."""
    workers = WorkerDirectory()
    workers.announced(_said("w", pack_status(NodeStatus(NodeState.OFFLINE, "s8"))))  # Retained, of a time before.
    for _ in range(2):
        workers.announced(_said("w", _status(NodeState.ONLINE, card)))
    workers.announced(_said("w", _status(NodeState.ONLINE, replace(card, version="2"))))
    workers.announced(_said("w", pack_status(NodeStatus(NodeState.ONLINE, "s10", 4, (card,)))))
    workers.announced(_said("w", pack_status(NodeStatus(NodeState.STOPPING, "s10", 4, (card,)))))
    workers.announced(_said("w", pack_status(NodeStatus(NodeState.OFFLINE, "s10"))))
    workers.told("v", _status(NodeState.ONLINE, card))
    workers.left("v")
    assert [(line["event"], line["worker"], line["level"]) for line in log_lines()] == [
        ("worker joined", "w", "info"),
        ("worker changed its models", "w", "info"),
        ("worker restarted", "w", "warning"),
        ("worker drains", "w", "info"),
        ("worker left", "w", "info"),
        ("worker joined", "v", "info"),
        ("worker left", "v", "warning"),
    ]
    assert log_lines()[1]["models"] == ["tiny 2"]

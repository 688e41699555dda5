"""The directory of workers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from edge.workers.worker_directory import NoWorkerError, WorkerDirectory
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import WORKER_STATUS
from shared.mqtt.bus import Delivery
from tests.edge.samples import CARD
from tests.support.waiting import beside

WAIT_S = 60.0


def _message(worker: str, payload: bytes) -> Delivery:
    return Delivery(WORKER_STATUS.of(worker=worker), payload, 0)


def _status(state: NodeState, *cards: ModelCard) -> bytes:
    return pack_status(NodeStatus(state, "s9", 4, cards))


def test_a_worker_serves_its_models_while_it_is_online() -> None:
    """A stopping worker accepts no more frames."""
    directory = WorkerDirectory("tiny")
    assert not directory.online()
    directory.announced(_message("w", _status(NodeState.ONLINE, CARD)))
    assert directory.online()
    directory.announced(_message("w", _status(NodeState.STOPPING, CARD)))
    assert not directory.online()
    directory.announced(_message("w", _status(NodeState.OFFLINE)))
    assert directory.last_failure_ns() == 0  # It has answered its frames before it ended.
    directory.announced(_message("w", _status(NodeState.ONLINE, CARD)))
    directory.announced(_message("w", _status(NodeState.OFFLINE)))
    assert not directory.online()


def test_the_late_will_of_a_replaced_process_is_ignored() -> None:
    """Otherwise frames would be dropped until the new process announces itself again."""
    directory = WorkerDirectory("tiny")
    directory.announced(_message("w", _status(NodeState.ONLINE, CARD)))
    directory.announced(_message("w", pack_status(NodeStatus(NodeState.OFFLINE, "s8"))))
    assert directory.online()
    assert not directory.last_failure_ns()
    directory.announced(_message("w", _status(NodeState.OFFLINE)))
    assert not directory.online()
    assert directory.last_failure_ns()


def test_a_reconnect_clears_the_directory() -> None:
    """A restarted broker does not know its former workers, and they may be gone."""
    directory = WorkerDirectory("tiny")
    directory.announced(_message("w", _status(NodeState.ONLINE, CARD)))
    directory.forget()
    assert not directory.online()
    directory.announced(_message("w", _status(NodeState.ONLINE, CARD)))
    assert directory.online()


def test_a_model_is_served_while_one_worker_is_left() -> None:
    """The broker chooses the worker of each frame."""
    directory = WorkerDirectory("tiny")
    for name in ("a", "b"):
        directory.announced(_message(name, _status(NodeState.ONLINE, CARD)))
    directory.announced(_message("a", _status(NodeState.OFFLINE)))
    assert directory.online()


@pytest.mark.parametrize("payload", [b"", b"garbage", b"\x81\xa1v\x02"])
def test_a_malformed_status_removes_the_worker(payload: bytes) -> None:
    """The handler runs on the network thread and must not raise; an empty payload deletes a retained status."""
    directory = WorkerDirectory("tiny")
    directory.announced(_message("w", _status(NodeState.ONLINE, CARD)))
    directory.announced(_message("w", payload))
    assert not directory.online()
    directory.announced(Delivery("skylane/v1/status/worker/a/b", b"", 0))


def test_the_number_of_workers_is_bounded() -> None:
    """A hostile client could announce millions."""
    directory = WorkerDirectory("tiny")
    for number in range(300):
        directory.announced(_message(f"w{number}", _status(NodeState.ONLINE, CARD)))
    assert len(directory.online()) == 256


def test_offline_workers_do_not_count_against_the_limit() -> None:
    """The broker retains the last status of every worker name, and container names change with each start."""
    tiny, first = WorkerDirectory("tiny"), WorkerDirectory("first")
    for directory in (tiny, first):
        for number in range(257):
            served = replace(CARD, name="first") if number == 0 else CARD
            directory.announced(_message(f"old{number}", _status(NodeState.ONLINE, served)))
            directory.announced(_message(f"old{number}", _status(NodeState.OFFLINE)))
        directory.announced(_message("new", _status(NodeState.ONLINE, CARD)))
    assert tiny.online() == [("new", "s9")]
    assert not first.online()
    assert tiny.last_failure_ns() > 0
    assert first.last_failure_ns() == 0  # The oldest failure is forgotten.


def test_a_vehicle_can_wait_for_a_card() -> None:
    """Vehicle and worker are often started at the same time."""
    directory, found = WorkerDirectory("tiny"), []
    with beside(lambda: found.append(directory.wait_for_card(WAIT_S))):
        directory.announced(_message("w", _status(NodeState.ONLINE, replace(CARD, name="other"))))
        directory.announced(_message("w", _status(NodeState.ONLINE, CARD)))
    assert found == [CARD]


def test_the_error_names_the_models_that_are_served() -> None:
    """The message says what to do."""
    directory = WorkerDirectory("tiny")
    with pytest.raises(NoWorkerError, match="no worker is online: start one with 'skylane cloud serve'"):
        directory.wait_for_card(0.0)
    directory = WorkerDirectory("tinny")
    directory.announced(_message("w", _status(NodeState.ONLINE, CARD)))
    with pytest.raises(NoWorkerError, match=r"no worker serves model 'tinny': did you mean tiny\?"):
        directory.wait_for_card(0.0)
    directory = WorkerDirectory("tiny", "9")
    directory.announced(_message("w", _status(NodeState.ONLINE, CARD)))
    with pytest.raises(NoWorkerError, match=r"^no worker serves version '9' of model 'tiny': ask for 1"):
        directory.wait_for_card(0.0)
    assert directory.announced_card(CARD.version, CARD.sha256) is None  # Other versions' results are refused.


def test_changes_of_workers_are_logged(log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """An operator sees why frames find no worker or another model; a repeated status is not logged."""
    directory = WorkerDirectory("tiny")
    directory.announced(
        _message("w", pack_status(NodeStatus(NodeState.OFFLINE, "s8")))
    )  # Retained since an earlier run.
    for _ in range(2):
        directory.announced(_message("w", _status(NodeState.ONLINE, CARD)))
    directory.announced(_message("w", _status(NodeState.ONLINE, replace(CARD, version="2"))))
    directory.announced(_message("w", pack_status(NodeStatus(NodeState.ONLINE, "s10", 4, (CARD,)))))
    directory.announced(_message("w", pack_status(NodeStatus(NodeState.STOPPING, "s10", 4, (CARD,)))))
    directory.announced(_message("w", pack_status(NodeStatus(NodeState.OFFLINE, "s10"))))
    directory.update("v", _status(NodeState.ONLINE, CARD))
    directory.left("v")
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

import json
from collections.abc import Iterator
from io import StringIO
from uuid import uuid4

import pytest
from rich.console import Console

from cloud.control_cli import models_table
from ops.broker.broker import Broker
from shared.messages import topics
from shared.messages.control import ControlReply, ModelEntry, ModelState
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from skylane import cli
from tests.support.control import FakeRepository, WorkerRig, open_worker


@pytest.fixture
def rig(mosquitto_broker: Broker) -> Iterator[WorkerRig]:
    """A worker `w` with two versions of a model and another model, on a separate broker."""
    bus = MqttBus(Address.parse(mosquitto_broker.url), "test-worker")
    with open_worker(FakeRepository(tiny=("1", "2"), other=("1",)), bus=bus) as opened:
        yield opened


def _control(broker: Broker, *arguments: str) -> int:
    """Runs the command and returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["cloud", "control", *arguments, "--broker", broker.url, "--operator", "anna"])
    return int(ended.value.code or 0)


def test_models_are_loaded_listed_and_unloaded(
    rig: WorkerRig, mosquitto_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command prints its effect."""
    for arguments, expected in (
        (("list",), "available"),
        (("ready",), "worker w: ready"),
        (("ready", "tiny"), "worker w: tiny is ready"),
        (("metadata", "tiny"), "4×6 rgb8, resized by crop"),
        (("load", "tiny", "--version", "2", "--keep"), "worker w: tiny version 2 is served after "),
        (("list", "tiny"), "kept"),
        (("unload", "tiny", "--version", "1"), "worker w: tiny version 1 is unloaded"),
    ):
        assert _control(mosquitto_broker, "w", *arguments) == 0
        assert expected in capsys.readouterr().out
    rig.send(1)
    assert rig.answer().model_version == "2"


@pytest.mark.usefixtures("rig")
def test_json_output(mosquitto_broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """The standard output has only the JSON document."""
    assert _control(mosquitto_broker, "w", "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(model["model"], model["state"]) for model in listed["models"]] == [
        ("tiny", "current"),
        ("tiny", "available"),
        ("other", "available"),
    ]


ERRORS = [
    (("w", "load", "huge"), 1, "skylane: worker w: no model 'huge': choose one of other, tiny"),
    (("w", "load", "../tiny"), 2, "'../tiny' is not allowed: use 1 to 64 of A-Z a-z 0-9 _ -"),
    (("w", "unload", "other"), 1, "skylane: worker w: other is not served here"),
    (("w", "ready", "other"), 1, ""),
    (("w", "list", "--keep"), 2, "--keep is for load, which replaces a version: leave it out with list"),
    (("w", "load"), 2, "name a model: skylane cloud control w load MODEL"),
    (("v", "list"), 1, "skylane: no worker online by the name 'v': choose one of w"),
]


@pytest.mark.usefixtures("rig")
def test_errors_are_one_line(mosquitto_broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is not 0."""
    for arguments, code, expected in ERRORS:
        assert _control(mosquitto_broker, *arguments) == code, arguments
        lines = capsys.readouterr().err.splitlines()
        assert expected in (lines[-1] if lines else "")


def test_disabled_control_is_reported_at_once(mosquitto_broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """MQTT 5 reports that a message has no subscriber, so that the command needs no timeout."""
    bus = MqttBus(Address.parse(mosquitto_broker.url), "test-worker")
    with open_worker(FakeRepository(tiny=("1",)), bus=bus, control=False):
        assert _control(mosquitto_broker, "w", "list") == 1
    assert "worker w does not accept control requests (--no-control)" in capsys.readouterr().err


def test_a_missing_reply_ends_in_a_timeout(mosquitto_broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """The worker may still carry out the request, which the message says."""
    with MqttBus(Address.parse(mosquitto_broker.url), f"test-{uuid4().hex[:6]}") as frozen:
        topic, status = topics.WORKER_STATUS.of(worker="ice"), pack_status(NodeStatus(NodeState.ONLINE, "s1"))
        frozen.subscribe(topics.CONTROL.filter(worker="ice"), 1, lambda _: None)
        frozen.publish(topic, status, qos=1, retained=True)
        assert _control(mosquitto_broker, "ice", "list", "--timeout", "0.2") == 1
    expected = capsys.readouterr().err
    assert "worker ice did not reply to list within 0.2 s, but may still carry it out" in expected


def test_brackets_in_errors_are_printed() -> None:
    """Rich would read them as markup."""
    entry = ModelEntry("tiny", "1", ModelState.BROKEN, detail="[/] is no list of [names]")
    shown = StringIO()
    Console(file=shown, width=200).print(models_table(ControlReply("n1", "w", models=(entry,))))
    assert "[/] is no list of [names]" in shown.getvalue()

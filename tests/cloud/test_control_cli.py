import json
from collections.abc import Iterator
from io import StringIO
from uuid import uuid4

import pytest
from rich.console import Console

import skylane
from cloud.control_cli import _models
from shared.broker.broker import Broker
from shared.messages import topics
from shared.messages.control import ControlReply, ModelEntry, ModelState
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from tests.support.control import Place, Shelf, open_worker


@pytest.fixture
def place(mosquitto_broker: Broker) -> Iterator[Place]:
    """A worker `w` of two versions and another model, on a broker of its own."""
    bus = MqttBus(Address.parse(mosquitto_broker.url), "test-worker")
    with open_worker(Shelf(tiny=("1", "2"), other=("1",)), bus=bus) as opened:
        yield opened


def _control(broker: Broker, *arguments: str) -> int:
    """Run the command; its exit code."""
    with pytest.raises(SystemExit) as ended:
        skylane.main(["cloud", "control", *arguments, "--broker", broker.url, "--operator", "anna"])
    return int(ended.value.code or 0)


def test_an_operator_loads_looks_and_unloads(
    place: Place, mosquitto_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line, while the worker serves; each step says what it did."""
    for arguments, told in (
        (("list",), "available"),
        (("ready",), "worker w: ready"),
        (("ready", "tiny"), "worker w: tiny is ready"),
        (("metadata", "tiny"), "4×6 rgb8, resized by crop"),
        (("load", "tiny", "--version", "2", "--keep"), "worker w: tiny version 2 answers frames after "),
        (("list", "tiny"), "kept"),
        (("unload", "tiny", "--version", "1"), "worker w: tiny version 1 is unloaded"),
    ):
        assert _control(mosquitto_broker, "w", *arguments) == 0
        assert told in capsys.readouterr().out
    place.send(1)
    assert place.answer().model_version == "2"


def test_a_program_gets_json(place: Place, mosquitto_broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone on the standard output."""
    assert place.ready.is_set()
    assert _control(mosquitto_broker, "w", "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(model["model"], model["state"]) for model in listed["models"]] == [
        ("tiny", "current"),
        ("tiny", "available"),
        ("other", "available"),
    ]


@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        (("w", "load", "huge"), (1, "skylane: worker w: no model 'huge': choose one of other, tiny")),
        (("w", "load", "../tiny"), (2, "'../tiny' is not allowed: use 1 to 64 of A-Z a-z 0-9 _ -")),
        (("w", "unload", "other"), (1, "skylane: worker w: other is not served here")),
        (("w", "ready", "other"), (1, "")),
        (("w", "load"), (2, "name a model: skylane cloud control w load MODEL")),
        (("v", "list"), (1, "skylane: no worker online by the name 'v': choose one of w")),
    ],
)
@pytest.mark.usefixtures("place")
def test_what_cannot_be_done_is_told_in_a_line(
    mosquitto_broker: Broker, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], ends: tuple[int, str]
) -> None:
    """And the exit code says it to a script."""
    code, told = ends
    assert _control(mosquitto_broker, *arguments) == code
    lines = capsys.readouterr().err.splitlines()
    assert told in (lines[-1] if lines else "")


def test_a_worker_that_takes_no_control_says_so_at_once(
    mosquitto_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """MQTT 5 tells that nobody listens; nobody waits for a timeout."""
    bus = MqttBus(Address.parse(mosquitto_broker.url), "test-worker")
    with open_worker(Shelf(tiny=("1",)), bus=bus, takes_control=False):
        assert _control(mosquitto_broker, "w", "list") == 1
    assert "worker w takes no control requests (--no-control)" in capsys.readouterr().err


def test_a_worker_that_does_not_answer_is_given_up(
    mosquitto_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the time that was given; what was asked may still be done, which the message says."""
    with MqttBus(Address.parse(mosquitto_broker.url), f"test-{uuid4().hex[:6]}") as frozen:
        topic, status = topics.WORKER_STATUS.of(worker="ice"), pack_status(NodeStatus(NodeState.ONLINE, "s1"))
        frozen.subscribe(topics.CONTROL.filter(worker="ice"), 1, lambda _: None)
        frozen.publish(topic, status, qos=1, retained=True)
        assert _control(mosquitto_broker, "ice", "list", "--timeout", "0.2") == 1
    told = capsys.readouterr().err
    assert "worker ice did not answer list within 0.2 s: what was asked may still be done" in told


def test_what_a_repository_says_is_no_colours() -> None:
    """What is wrong with a model is told with its files' words: brackets in them ended the table with an error."""
    entry = ModelEntry("tiny", "1", ModelState.BROKEN, detail="[/] is no list of [names]")
    shown = StringIO()
    Console(file=shown, width=200).print(_models(ControlReply("n1", "w", models=(entry,))))
    assert "[/] is no list of [names]" in shown.getvalue()

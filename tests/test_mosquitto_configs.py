"""The broker configurations that ship, loaded by the real Mosquitto; tests/doors has what the secured one lets through."""

import getpass
import re
import socket
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from shared.authority import Authority, Role
from shared.broker import Broker
from shared.fields import MAX_MESSAGE_BYTES
from shared.mosquitto import DEVELOPMENT_SETTINGS
from shared.mosquitto_secured import ROLES, SECURED_SETTINGS
from tests.doors.client import Client

CONFIGS = Path(__file__).parents[1] / "mosquitto"


def load(config: str, folder: Path, certificates: Path) -> Path:
    """Write a configuration that ships to `folder`, with this machine's paths and a free port of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    text = (CONFIGS / config).read_text(encoding="utf-8")
    text = re.sub(r"^listener \d+$", f"listener {port} 127.0.0.1", text, flags=re.MULTILINE)
    text = text.replace("/mosquitto/certs", str(certificates)).replace("/mosquitto/config", str(CONFIGS))
    path = folder / config
    path.write_text(f"{text}\nuser {getpass.getuser()}\n", encoding="utf-8")  # Whoever may read the test's keys.
    return path


def settings(config: str) -> list[str]:
    """The lines of a configuration that say something."""
    lines = (CONFIGS / config).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_skylane_broker_runs_the_development_settings() -> None:
    """What `skylane broker` writes and what the container mounts must not drift apart."""
    assert settings("development.conf") == ["listener 1883", *DEVELOPMENT_SETTINGS]


def test_skylane_broker_runs_the_secured_settings_and_roles() -> None:
    """The same: a line that only one of them had would be a door open in the other."""
    paths = {"certs": "/mosquitto/certs", "config": "/mosquitto/config"}
    written = {line.format(**paths) for line in SECURED_SETTINGS}
    assert set(settings("secured.conf")) == {"listener 8883", *written}
    assert settings("acl") == list(ROLES)


def test_secured_settings_keep_what_was_measured() -> None:
    """Security may not cost the delays and the lost wills that the development settings avoid."""
    assert set(DEVELOPMENT_SETTINGS) - {"allow_anonymous true"} <= set(settings("secured.conf"))


def test_the_largest_message_is_the_protocols() -> None:
    """A packet over the broker's limit makes a publisher at QoS 1 reconnect for ever."""
    assert f"message_size_limit {MAX_MESSAGE_BYTES}" in DEVELOPMENT_SETTINGS


@pytest.mark.mosquitto
def test_development_configuration_lets_anyone_in(tmp_path: Path) -> None:
    """The containers mount this file: it must load as it is, and need no password."""
    with Broker.start(config=load("development.conf", tmp_path, tmp_path)) as broker:
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.connect(broker.listener.host, broker.listener.port)
        assert client.publish("skylane/v1/anything", b"x").rc == 0
        client.disconnect()


@pytest.mark.mosquitto
def test_secured_configuration_gives_each_certificate_its_role(tmp_path: Path) -> None:
    """The containers mount this file and the ACL beside it: they must load as they are."""
    authority = Authority(tmp_path / "certs")
    authority.broker(["127.0.0.1"], 1)
    authority.node(Role.VEHICLE, "car-1", 1)
    with Broker.start(config=load("secured.conf", tmp_path, authority.folder)) as broker:
        assert broker.url.startswith("mqtts://")
        with Client(broker, authority.folder, "car-1") as vehicle:
            assert vehicle.may_publish("frames/road-small/car-1/left")
            assert not vehicle.may_publish("frames/road-small/car-2/left")

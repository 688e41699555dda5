"""The broker configurations that ship, loaded by the real Mosquitto; tests/doors has what the secured one lets through."""

import getpass
import re
import socket
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from shared.broker.broker import Broker
from shared.broker.certificate_authority import CertificateAuthority, Role
from shared.broker.mosquitto import Listener, write_config
from shared.broker.mosquitto_secured import write_secured_config
from shared.encoding.msgpack_reader import MAX_MESSAGE_BYTES
from tests.support.mqtt_client import Client

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


def settings(config: Path) -> list[str]:
    """The lines of a configuration that are settings, not comments."""
    lines = config.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_skylane_broker_runs_the_development_settings(tmp_path: Path) -> None:
    """`skylane broker` and the container run one file; only the address differs."""
    written = settings(write_config(tmp_path / "broker.conf", Listener("127.0.0.1", 1234)))
    assert written[0] == "listener 1234 127.0.0.1"
    assert written[1:] == settings(CONFIGS / "development.conf")[1:]


def test_skylane_broker_runs_the_secured_settings_and_roles(tmp_path: Path) -> None:
    """A path of the container image that stays would be a broker that does not start; a line lost, an open door."""
    authority = CertificateAuthority(tmp_path / "certs")
    authority.broker(["127.0.0.1"], 1)
    folder = tmp_path / "broker"
    folder.mkdir()
    written = settings(write_secured_config(folder, Listener("127.0.0.1", 1234), authority.folder))
    shipped = settings(CONFIGS / "secured.conf")
    assert [line.split()[0] for line in written if not line.startswith("user ")] == [
        line.split()[0] for line in shipped
    ]
    assert written[0] == "listener 1234 127.0.0.1"
    assert f"acl_file {folder / 'acl'}" in written
    assert not [line for line in written if " /mosquitto/" in line]
    assert settings(folder / "acl") == settings(CONFIGS / "acl")


def test_secured_settings_keep_what_was_measured() -> None:
    """Security may not cost the delays and the lost wills that the development settings avoid."""
    development = {line for line in settings(CONFIGS / "development.conf") if not line.startswith("listener ")}
    assert development - {"allow_anonymous true"} <= set(settings(CONFIGS / "secured.conf"))


def test_the_largest_message_is_the_protocols() -> None:
    """A packet over the broker's limit makes a publisher at QoS 1 reconnect for ever."""
    assert f"message_size_limit {MAX_MESSAGE_BYTES}" in settings(CONFIGS / "development.conf")


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
    authority = CertificateAuthority(tmp_path / "certs")
    authority.broker(["127.0.0.1"], 1)
    authority.node(Role.VEHICLE, "car-1", 1)
    with Broker.start(config=load("secured.conf", tmp_path, authority.folder)) as broker:
        assert broker.url.startswith("mqtts://")
        with Client(broker, authority.folder, "car-1") as vehicle:
            assert vehicle.may_publish("frames/road-small/car-1/left")
            assert not vehicle.may_publish("frames/road-small/car-2/left")

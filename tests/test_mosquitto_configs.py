"""The shipped broker configurations in a real Mosquitto; the tests of the secured broker's roles are in tests/security."""

import getpass
import re
from pathlib import Path

import pytest

from ops.broker.broker import Broker
from ops.broker.certificate_authority import CertificateAuthority, Role
from ops.broker.mosquitto import MosquittoListener, write_config, write_secured_config
from shared.messages.msgpack_reader import MAX_MESSAGE_BYTES
from tests.support.mqtt_bus import Acks, connect, free_port
from tests.support.mqtt_client import Client

CONFIGS = Path(__file__).parents[1] / "mosquitto"


def load(config: str, folder: Path, certificates: Path) -> Path:
    """Writes a shipped configuration to `folder`, with this machine's paths and a free port of 127.0.0.1."""
    text = (CONFIGS / config).read_text(encoding="utf-8")
    text = re.sub(r"^listener \d+$", f"listener {free_port()} 127.0.0.1", text, flags=re.MULTILINE)
    text = text.replace("/mosquitto/certs", str(certificates)).replace("/mosquitto/config", str(CONFIGS))
    path = folder / config
    path.write_text(
        f"{text}\nuser {getpass.getuser()}\n", encoding="utf-8"
    )  # Mosquitto must be able to read the keys as this user.
    return path


def settings(config: Path) -> list[str]:
    """Returns the lines of a configuration without comments."""
    lines = config.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_skylane_broker_uses_the_development_settings(tmp_path: Path) -> None:
    """`skylane broker` and the container use one file; only the address differs."""
    written = settings(write_config(tmp_path / "broker.conf", MosquittoListener("127.0.0.1", 1234)))
    assert written[0] == "listener 1234 127.0.0.1"
    assert written[1:] == settings(CONFIGS / "development.conf")[1:]


def test_skylane_broker_uses_the_secured_settings_and_acl(tmp_path: Path) -> None:
    """All paths of the container image are replaced, and no setting is lost."""
    authority = CertificateAuthority(tmp_path / "certs")
    authority.broker(["127.0.0.1"], 1)
    folder = tmp_path / "broker"
    folder.mkdir()
    written = settings(write_secured_config(folder, MosquittoListener("127.0.0.1", 1234), authority.folder))
    shipped = settings(CONFIGS / "secured.conf")
    assert [line.split()[0] for line in written if not line.startswith("user ")] == [
        line.split()[0] for line in shipped
    ]
    assert written[0] == "listener 1234 127.0.0.1"
    assert f"acl_file {folder / 'acl'}" in written
    assert not [line for line in written if " /mosquitto/" in line]
    assert settings(folder / "acl") == settings(CONFIGS / "acl")


def test_secured_settings_include_the_development_settings() -> None:
    """The development settings avoid delays and lost wills."""
    development = {line for line in settings(CONFIGS / "development.conf") if not line.startswith("listener ")}
    assert development - {"allow_anonymous true"} <= set(settings(CONFIGS / "secured.conf"))


def test_the_brokers_message_limit_is_that_of_the_protocol() -> None:
    """A QoS 1 publisher reconnects and resends a packet above the broker's limit forever."""
    assert f"message_size_limit {MAX_MESSAGE_BYTES}" in settings(CONFIGS / "development.conf")


@pytest.mark.mosquitto
def test_the_development_configuration_needs_no_password(tmp_path: Path) -> None:
    """The containers mount this file unchanged."""
    with Broker.start(config=load("development.conf", tmp_path, tmp_path)) as broker:
        acks = Acks()
        with connect(broker.url) as bus:
            bus.publish("skylane/v1/anything", b"x", qos=1, acknowledged=acks.put)
            assert acks.next().accepted


@pytest.mark.mosquitto
def test_the_secured_configuration_applies_the_acl(tmp_path: Path) -> None:
    """The containers mount this file and the ACL unchanged."""
    authority = CertificateAuthority(tmp_path / "certs")
    authority.broker(["127.0.0.1"], 1)
    authority.node(Role.VEHICLE, "car-1", 1)
    with Broker.start(config=load("secured.conf", tmp_path, authority.folder)) as broker:
        assert broker.url.startswith("mqtts://")
        with Client(broker, authority.folder, "car-1") as vehicle:
            assert vehicle.may_publish("frames/road-small/car-1/left")
            assert not vehicle.may_publish("frames/road-small/car-2/left")

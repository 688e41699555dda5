"""The shipped broker configurations in a real Mosquitto; the tests of the secured broker's roles are in tests/security."""

from pathlib import Path

from ops.broker.certificate_authority import CertificateAuthority
from ops.broker.mosquitto import MosquittoListener, write_config, write_secured_config
from shared.messages.msgpack_reader import MAX_MESSAGE_BYTES

CONFIGS = Path(__file__).parents[1] / "mosquitto"


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

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from shared.errors import SkylaneError
from shared.mqtt.bus import Will
from shared.network.address import Certificates
from shared.network.broker_options import DEFAULT_BROKER, Connection, broker_options
from shared.network.tls import CertificateError


@click.command()
@broker_options
def _command(**flags: Any) -> None:
    click.echo(repr(Connection(**{key: value for key, value in flags.items() if value is not None})))


def test_without_flags_the_broker_is_this_machines() -> None:
    """As `skylane broker` starts it."""
    assert f"broker={DEFAULT_BROKER!r}" in CliRunner().invoke(_command).output


def test_the_environment_names_the_broker_and_a_flag_wins() -> None:
    """A container is told by its environment."""
    run = CliRunner(env={"SKYLANE_BROKER": "mqtt://there"})
    assert "broker='mqtt://there'" in run.invoke(_command).output
    assert "broker='mqtt://here'" in run.invoke(_command, ["--broker", "mqtt://here"]).output


def test_the_environment_names_the_folder_of_certificates(tmp_path: Path) -> None:
    """A container's health check takes no flags of its own."""
    assert f"certs={tmp_path!r}" in CliRunner(env={"SKYLANE_CERTS": str(tmp_path)}).invoke(_command).output


def test_every_flag_arrives_as_a_field(tmp_path: Path) -> None:
    """Names that differ would be a traceback at the first use."""
    pem = tmp_path / "x.pem"
    pem.touch()
    flags = ["--connect-timeout", "2", "--tls-ca", str(pem), "--tls-cert", str(pem), "--tls-key", str(pem)]
    output = CliRunner().invoke(_command, [*flags, "--certs", str(tmp_path)]).output
    assert "connect_timeout_s=2.0" in output
    assert f"certs={tmp_path!r}" in output
    assert output.count("x.pem") == 3


@pytest.mark.parametrize(
    "flags", [["--connect-timeout", "0"], ["--tls-ca", "/nowhere/ca.pem"], ["--certs", "/nowhere"]]
)
def test_a_flag_that_cannot_be_is_bad_usage(flags: list[str]) -> None:
    """Told before anything is connected."""
    assert CliRunner().invoke(_command, flags).exit_code == 2


def test_an_address_that_cannot_be_read_is_told() -> None:
    """One line."""
    with pytest.raises(SkylaneError, match="write mqtt://host:1883"):
        Connection(broker="http://x").open("test", Will("t", b""))


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """A folder as `skylane broker certs` makes it, for car-1."""
    for name in ("ca.crt", "car-1.crt", "car-1.key", "other.crt", "other.key"):
        (tmp_path / name).touch()
    return tmp_path


def test_a_node_finds_its_certificate_by_its_name(certs: Path) -> None:
    """One folder and one flag for all nodes of a machine."""
    found = Connection(certs=certs).certificates("car-1")
    assert found == Certificates(str(certs / "ca.crt"), str(certs / "car-1.crt"), str(certs / "car-1.key"))
    assert Connection(certs=certs).certificates(None) == Certificates(str(certs / "ca.crt"))
    assert Connection().certificates("car-1") is None


def test_a_flag_beside_the_folder_wins(certs: Path) -> None:
    """A certificate without its key would be worse than none: they go together."""
    own = Connection(certs=certs, tls_cert=certs / "other.crt", tls_key=certs / "other.key").certificates("car-1")
    assert own == Certificates(str(certs / "ca.crt"), str(certs / "other.crt"), str(certs / "other.key"))
    trusting = Connection(certs=certs, tls_ca=certs / "other.crt").certificates("car-1")
    assert trusting == Certificates(str(certs / "other.crt"), str(certs / "car-1.crt"), str(certs / "car-1.key"))


def test_a_certificate_is_used_without_an_authority_of_its_own(certs: Path) -> None:
    """The broker's may be one that this machine trusts anyway; it used to be left out without a word."""
    own = Connection(tls_cert=certs / "car-1.crt", tls_key=certs / "car-1.key").certificates(None)
    assert own == Certificates(None, str(certs / "car-1.crt"), str(certs / "car-1.key"))


@pytest.mark.parametrize("missing", ["ca.crt", "car-1.crt", "car-1.key"])
def test_a_file_that_the_folder_lacks_is_named(certs: Path, missing: str) -> None:
    """With what makes it."""
    (certs / missing).unlink()
    with pytest.raises(CertificateError, match=rf"there is no .*/{missing}: make it with 'skylane broker certs'"):
        Connection(certs=certs).certificates("car-1")


@pytest.mark.mosquitto
def test_the_narrowest_link_reaches_the_bus(mosquitto_url: str) -> None:
    """A bound that stayed on the way would let a frame through that never arrives."""
    with Connection(mosquitto_url, min_bandwidth_mbps=1).open("test-narrow", None) as bus:
        assert bus.max_payload_bytes == 1_500_000

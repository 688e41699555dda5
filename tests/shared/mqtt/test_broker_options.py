from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from shared.errors import SkylaneError
from shared.mqtt.broker_options import DEFAULT_BROKER, BrokerOptions, broker_options, connection_from
from shared.mqtt.bus import Will
from shared.network.address import Certificates
from shared.network.tls import CertificateError


@click.command()
@broker_options
def _command(**flags: Any) -> None:
    click.echo(repr(connection_from(flags)))


def test_the_default_broker_is_on_this_machine() -> None:
    """It is the one that `skylane broker` starts."""
    assert f"broker={DEFAULT_BROKER!r}" in CliRunner().invoke(_command).output


def test_the_broker_comes_from_the_environment_unless_a_flag_is_given() -> None:
    """Containers are configured by their environment."""
    run = CliRunner(env={"SKYLANE_BROKER": "mqtt://there"})
    assert "broker='mqtt://there'" in run.invoke(_command).output
    assert "broker='mqtt://here'" in run.invoke(_command, ["--broker", "mqtt://here"]).output


def test_the_certificate_folder_comes_from_the_environment(tmp_path: Path) -> None:
    """A container's health check has no flags."""
    assert f"certs={tmp_path!r}" in CliRunner(env={"SKYLANE_CERTS": str(tmp_path)}).invoke(_command).output


def test_every_flag_arrives_as_a_field(tmp_path: Path) -> None:
    """A mismatch of names would raise a TypeError at the first use."""
    pem = tmp_path / "x.pem"
    pem.touch()
    flags = ["--connect-timeout", "2", "--tls-ca", str(pem), "--tls-cert", str(pem), "--tls-key", str(pem)]
    output = CliRunner().invoke(_command, [*flags, "--certs", str(tmp_path), "--broker", "mqtts://here"]).output
    assert "connect_timeout_s=2.0" in output
    assert f"certs={tmp_path!r}" in output
    assert output.count("x.pem") == 3


@pytest.mark.parametrize("flag", ["--tls-ca", "--tls-cert", "--tls-key"])
def test_a_certificate_needs_a_broker_with_tls(tmp_path: Path, flag: str) -> None:
    """Otherwise a user who forgets the s of mqtts:// believes that the frames are encrypted."""
    pem = tmp_path / "x.pem"
    pem.touch()
    refused = CliRunner().invoke(_command, [flag, str(pem), "--broker", "mqtt://here"])
    assert refused.exit_code == 2
    assert f"{flag}: mqtt://here has no TLS: set --broker to mqtts://" in refused.output


def test_an_invalid_address_is_reported() -> None:
    """`open` raises it as a SkylaneError."""
    with pytest.raises(SkylaneError, match="write mqtt://host:1883"):
        BrokerOptions(broker="http://x").open("test", Will("t", b""))


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """A folder like that of `skylane broker certs`, for car-1."""
    for name in ("ca.crt", "car-1.crt", "car-1.key", "other.crt", "other.key"):
        (tmp_path / name).touch()
    return tmp_path


def test_a_node_finds_its_certificate_by_its_name(certs: Path) -> None:
    """One folder serves all nodes of a machine."""
    found = BrokerOptions(certs=certs).certificates("car-1")
    assert found == Certificates(str(certs / "ca.crt"), str(certs / "car-1.crt"), str(certs / "car-1.key"))
    assert BrokerOptions(certs=certs).certificates(None) == Certificates(str(certs / "ca.crt"))
    assert BrokerOptions().certificates("car-1") is None


def test_flags_override_files_of_the_folder(certs: Path) -> None:
    """A certificate and its key are overridden together."""
    overridden = BrokerOptions(certs=certs, tls_cert=certs / "other.crt", tls_key=certs / "other.key").certificates(
        "car-1"
    )
    assert overridden == Certificates(str(certs / "ca.crt"), str(certs / "other.crt"), str(certs / "other.key"))
    other_authority = BrokerOptions(certs=certs, tls_ca=certs / "other.crt").certificates("car-1")
    assert other_authority == Certificates(str(certs / "other.crt"), str(certs / "car-1.crt"), str(certs / "car-1.key"))


def test_a_certificate_may_be_used_without_an_authority(certs: Path) -> None:
    """The system may trust the broker's authority already."""
    overridden = BrokerOptions(tls_cert=certs / "car-1.crt", tls_key=certs / "car-1.key").certificates(None)
    assert overridden == Certificates(None, str(certs / "car-1.crt"), str(certs / "car-1.key"))


@pytest.mark.parametrize("missing", ["ca.crt", "car-1.crt", "car-1.key"])
def test_a_missing_file_of_the_folder_is_named(certs: Path, missing: str) -> None:
    """The error says how to create it."""
    (certs / missing).unlink()
    with pytest.raises(CertificateError, match=rf"/{missing} does not exist: make it with 'skylane broker certs'"):
        BrokerOptions(certs=certs).certificates("car-1")


@pytest.mark.mosquitto
def test_the_minimum_bandwidth_limits_the_payload(mosquitto_url: str) -> None:
    """Without the limit, a frame would be sent that never arrives."""
    with BrokerOptions(mosquitto_url, min_bandwidth_mbps=1).open("test-narrow", None) as bus:
        assert bus.max_payload_bytes == 1_500_000

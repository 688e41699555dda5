"""Errors of the commands at a secured broker: one line with the cause and what to do."""

import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from edge.config import EdgeConfig
from edge.run import run
from ops.broker.broker import Broker
from ops.broker.certificate_authority import CertificateAuthority
from shared.errors import SkylaneError
from shared.imaging.opencv import cv2
from tests.support.bad_certificates import use_self_signed
from tests.support.command import Command
from tests.support.mqtt_client import Client

pytestmark = pytest.mark.mosquitto
PROCESS_S = 180.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one image."""
    folder = tmp_path_factory.mktemp("images")
    cv2.imwrite(str(folder / "0.png"), np.zeros((8, 8, 3), np.uint8))
    return folder


@pytest.fixture
def play(source: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs `skylane edge play` until it fails; returns the error message."""

    def play_to(
        broker: str, certs: Path | None, vehicle: str = "car-1", connect_timeout_s: float = PROCESS_S, **settings: Any
    ) -> str:
        config = EdgeConfig(
            broker=broker,
            certs=certs,
            vehicle=vehicle,
            out=tmp_path / "run",
            connect_timeout_s=connect_timeout_s,
            **settings,
        )
        with pytest.raises(SkylaneError) as caught:
            run(str(source), config, Console(file=StringIO()))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return play_to


@pytest.fixture
def folder(certs: Path, tmp_path: Path) -> Path:
    """The certificate folder of a vehicle."""
    folder = tmp_path / "certs-of-car-1"
    folder.mkdir()
    for name in ("ca.crt", "car-1.crt", "car-1.key"):
        shutil.copy(certs / name, folder)
    return folder


def test_a_valid_certificate_is_accepted(secured: Broker, folder: Path, play: Callable[..., str]) -> None:
    """The command continues until it finds no worker; this validates the tests below."""
    assert "worker" in play(secured.url, folder, connect_timeout_s=3)


def test_no_certificate(secured: Broker, folder: Path, play: Callable[..., str]) -> None:
    """Users often forget the certificate."""
    (folder / "car-1.crt").unlink()
    assert f"certs: {folder / 'car-1.crt'} does not exist" in play(secured.url, folder)


def test_a_certificate_that_the_broker_rejects(
    secured: Broker, authority: CertificateAuthority, folder: Path, play: Callable[..., str]
) -> None:
    """The error names the certificate and the reason; `tests/shared/network/test_tls.py` has the other reasons."""
    use_self_signed(folder, authority)
    message = f"refuses the certificate {folder / 'car-1.crt'}: it is not signed by an authority the broker knows"
    assert message in play(secured.url, folder)


def test_a_revoked_certificate(folder: Path, play: Callable[..., str], certs: Path, tmp_path: Path) -> None:
    """A stolen car's certificate would otherwise be valid for ninety days; those of others remain valid."""
    shutil.copytree(certs, tmp_path / "certs")
    CertificateAuthority(tmp_path / "certs").revoke("car-1")
    with Broker.start(secured=tmp_path / "certs") as broker:
        assert "it was revoked" in play(broker.url, folder)
        with Client(broker, certs, "car-2") as other:
            assert other.may_publish("status/vehicle/car-2")


def test_a_vehicle_name_that_differs_from_its_certificate(
    secured: Broker, certs: Path, play: Callable[..., str]
) -> None:
    """The broker would drop all its messages, and every frame of the run would be lost without a reason."""
    message = play(
        secured.url,
        None,
        vehicle="car-3",
        connect_timeout_s=3,
        tls_ca=str(certs / "ca.crt"),
        tls_cert=str(certs / "car-1.crt"),
        tls_key=str(certs / "car-1.key"),
    )
    assert "car-3" in message
    assert "--vehicle" in message
    assert "certificate" in message


def test_the_error_is_one_line_and_the_exit_code_1(secured: Broker, certs: Path) -> None:
    """Errors that a user can correct have no traceback."""
    flags = ("--broker", secured.url, "--tls-ca", certs / "ca.crt", "--connect-timeout", 60)
    with Command("cloud", "control", "worker-1", "list", *flags) as running:
        assert running.wait()[0] == 1
    assert running.log_lines[-1].startswith(f"skylane: broker {secured.url} requires a certificate")
    assert not any("Traceback" in line for line in running.log_lines)
    with Client(secured, certs, "car-1") as vehicle:
        assert vehicle.may_publish("frames/road-small/car-1/left")

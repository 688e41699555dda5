"""What our own commands say at a locked door: the cause, and what to do, in one line."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from edge import cli
from edge.config import EdgeConfig
from shared.broker.broker import Broker
from shared.broker.certificate_authority import CertificateAuthority, Role
from shared.errors import SkylaneError
from shared.imaging.opencv import cv2
from tests.support.mqtt_client import Client

pytestmark = pytest.mark.mosquitto
PROCESS_S = 180.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one picture."""
    folder = tmp_path_factory.mktemp("pictures")
    cv2.imwrite(str(folder / "0.png"), np.zeros((8, 8, 3), np.uint8))
    return folder


@pytest.fixture
def play(source: Path, tmp_path: Path) -> Callable[..., str]:
    """`skylane edge play`, as far as the door: how it ended."""

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
            cli.run(str(source), config, Console(file=StringIO()))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return play_to


@pytest.fixture
def folder(certs: Path, tmp_path: Path) -> Path:
    """A vehicle's folder: the authority's certificate and its own."""
    folder = tmp_path / "certs-of-car-1"
    folder.mkdir()
    for name in ("ca.crt", "car-1.crt", "car-1.key"):
        shutil.copy(certs / name, folder)
    return folder


def put(source: Path, name: str, folder: Path) -> None:
    """Put another certificate and its key where car-1's are."""
    for kind in ("crt", "key"):
        shutil.copy(source / f"{name}.{kind}", folder / f"car-1.{kind}")


def test_the_right_certificate_is_let_in(secured: Broker, folder: Path, play: Callable[..., str]) -> None:
    """Without this the refusals below would say nothing: it goes on until it finds no worker."""
    assert "worker" in play(secured.url, folder, connect_timeout_s=3)


def test_no_certificate(secured: Broker, folder: Path, play: Callable[..., str]) -> None:
    """The first thing that everybody forgets."""
    (folder / "car-1.crt").unlink()
    told = play(secured.url, folder)
    assert f"there is no {folder / 'car-1.crt'}: make it with 'skylane broker certs'" in told
    told = play(secured.url, None, tls_ca=str(folder / "ca.crt"))
    assert f"broker {secured.url} wants a certificate: give this node's with --certs" in told


def test_an_authority_that_the_broker_does_not_know(
    secured: Broker, folder: Path, play: Callable[..., str], tmp_path: Path
) -> None:
    """A certificate of another deployment, or of somebody's own making."""
    other = CertificateAuthority(tmp_path / "other")
    other.node(Role.VEHICLE, "car-1", 1)
    put(other.folder, "car-1", folder)
    told = play(secured.url, folder)
    assert f"refuses the certificate {folder / 'car-1.crt'}: it is not signed by an authority the broker knows" in told


def test_a_certificate_that_signed_itself(
    secured: Broker, folder: Path, play: Callable[..., str], tmp_path: Path
) -> None:
    """The shortest recipe that the internet has."""
    other = CertificateAuthority(tmp_path / "other")
    shutil.copy(other.certificate_file, folder / "car-1.crt")
    shutil.copy(other.key_file, folder / "car-1.key")
    assert "it is not signed by an authority the broker knows" in play(secured.url, folder)


def test_a_certificate_that_expired(
    secured: Broker, certs: Path, folder: Path, play: Callable[..., str], tmp_path: Path
) -> None:
    """It happens to everyone after ninety days: the message must be the cure."""
    shutil.copytree(certs, tmp_path / "then")
    CertificateAuthority(tmp_path / "then", now=datetime.now(UTC) - timedelta(days=9)).node(Role.VEHICLE, "old", 5)
    put(tmp_path / "then", "old", folder)
    assert "it has expired: renew it (skylane broker certs --again), or" in play(secured.url, folder)


def test_a_certificate_that_is_not_for_a_client(
    secured: Broker, certs: Path, folder: Path, play: Callable[..., str]
) -> None:
    """The broker's own."""
    put(certs, "server", folder)
    assert "it is not one for a client" in play(secured.url, folder)


def test_a_certificate_that_was_revoked(folder: Path, play: Callable[..., str], certs: Path, tmp_path: Path) -> None:
    """Whoever drives the car must learn that it is locked out on purpose."""
    shutil.copytree(certs, tmp_path / "certs")
    CertificateAuthority(tmp_path / "certs").revoke("car-1")
    with Broker.start(secured=tmp_path / "certs") as broker:
        assert "it was revoked" in play(broker.url, folder)


def test_a_key_of_another_certificate(secured: Broker, certs: Path, folder: Path, play: Callable[..., str]) -> None:
    """Two files copied from two places."""
    shutil.copy(certs / "car-2.key", folder / "car-1.key")
    assert "does not belong to the certificate" in play(secured.url, folder)


def test_a_broker_of_another_authority(secured: Broker, folder: Path, play: Callable[..., str], tmp_path: Path) -> None:
    """Someone else's broker, or one in between, must not get a single picture."""
    shutil.copy(CertificateAuthority(tmp_path / "other").certificate_file, folder / "ca.crt")
    told = play(secured.url, folder)
    assert f"the certificate of broker {secured.url} is not signed by an authority that is trusted here" in told


def test_a_broker_by_a_name_that_is_not_in_its_certificate(
    secured: Broker, folder: Path, play: Callable[..., str]
) -> None:
    """Anybody with a certificate of our authority could pass for the broker otherwise."""
    told = play(secured.url.replace("127.0.0.1", "localhost"), folder)
    assert "is not for 'localhost': connect by a name that stands in it" in told


def test_a_vehicle_by_another_name_than_its_certificates(
    secured: Broker, certs: Path, play: Callable[..., str]
) -> None:
    """The broker would withhold all that it says, and every frame of the run would be lost without a reason."""
    told = play(
        secured.url,
        None,
        vehicle="car-3",
        connect_timeout_s=3,
        tls_ca=str(certs / "ca.crt"),
        tls_cert=str(certs / "car-1.crt"),
        tls_key=str(certs / "car-1.key"),
    )
    assert "car-3" in told
    assert "--vehicle" in told
    assert "certificate" in told


@pytest.mark.parametrize(
    "command",
    [
        ["edge", "play", ".", "--vehicle", "car-1", "--no-sinks"],
        ["cloud", "control", "worker-1", "list"],
    ],
)
def test_it_is_one_line_and_exit_code_1(secured: Broker, certs: Path, source: Path, command: list[str]) -> None:
    """As every mistake that a user can mend, and never a traceback."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "skylane", *command),
            *("--broker", secured.url, "--tls-ca", str(certs / "ca.crt"), "--connect-timeout", "60"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_S,
        cwd=source,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"skylane: broker {secured.url} wants a certificate")
    assert "Traceback" not in done.stderr
    with Client(secured, certs, "car-1") as vehicle:
        assert vehicle.may_publish("frames/road-small/car-1/left")

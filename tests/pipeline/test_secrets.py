"""A run with certificates and a password: neither appears in any output or file."""

import base64
import getpass
import hashlib
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ops.broker.broker import Broker
from ops.broker.certificate_authority import CertificateAuthority, Role
from ops.broker.mosquitto import MosquittoListener, configuration
from ops.processes.vehicle_process import VehicleProcess
from ops.processes.worker_process import Worker
from shared.runlog.latency_log import Outcome, read_rows
from tests.pipeline.rig import WAIT_S, pictures

USER = "fleet"
VEHICLE, WORKER = "car-1", "worker-1"


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """Creates certificates of a broker, a vehicle and a worker."""
    authority = CertificateAuthority(tmp_path / "certs")
    authority.broker(["127.0.0.1"], 1)
    authority.node(Role.VEHICLE, VEHICLE, 1)
    authority.node(Role.WORKER, WORKER, 1)
    return authority.folder


@pytest.fixture
def password() -> str:
    """Returns a random password."""
    return secrets.token_urlsafe(24)


@pytest.fixture
def broker(certs: Path, tmp_path: Path, password: str) -> Iterator[Broker]:
    """Starts the secured broker with password authentication."""
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    (tmp_path / "passwords").write_text(f"{USER}:$7$101${_text(salt)}${_text(digest)}\n", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    text = configuration("secured.conf", MosquittoListener("127.0.0.1", port)).replace("/mosquitto/certs", str(certs))
    lines = [line for line in text.splitlines() if not line.startswith(("use_identity_as_username", "acl_file"))]
    lines += [f"password_file {tmp_path / 'passwords'}", f"user {getpass.getuser()}"]
    config = tmp_path / "broker.conf"
    config.write_text("\n".join([*lines, ""]), encoding="utf-8")
    with Broker.start(config=config) as running:
        yield running


@pytest.mark.mosquitto
def test_password_and_keys_appear_nowhere(
    *, broker: Broker, certs: Path, models: Path, tmp_path: Path, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs are shared, manifests are published, and every user of a machine can read command lines."""
    url = broker.url.replace("mqtts://", f"mqtts://{USER}@")
    left = tmp_path / "left"  # Files that the run leaves behind.
    left.mkdir()
    (tmp_path / "password").write_text(f"{password}\n", encoding="utf-8")
    monkeypatch.setenv("SKYLANE_BROKER_PASSWORD_FILE", str(tmp_path / "password"))
    with Worker(
        url,
        models=models,
        model="tiny",
        name=WORKER,
        flags=("--isolate", "--certs", str(certs), "--resources", str(left / "resources.csv")),
        log=left / "worker.log",
    ) as worker:
        monkeypatch.delenv("SKYLANE_BROKER_PASSWORD_FILE")
        monkeypatch.setenv("SKYLANE_BROKER_PASSWORD", password)
        flags = ["--broker", url, "--certs", str(certs), "--model", "tiny"]
        source = pictures(tmp_path, 5)
        with VehicleProcess(source, left / "run", flags, vehicle=VEHICLE, waits_for_go=True) as vehicle:
            engines = psutil.Process(worker.pid).children(recursive=True)
            assert engines  # The process of the model.
            running = [psutil.Process(vehicle.pid), psutil.Process(worker.pid), psutil.Process(broker.pid), *engines]
            command_lines = [" ".join(process.cmdline()) for process in running]
            engine_environment = [f"{name}={value}" for engine in engines for name, value in engine.environ().items()]
            vehicle.go()
            vehicle.wait(WAIT_S)
    assert [row["outcome"] for row in read_rows(left / "run")] == [Outcome.ANSWERED] * 5, vehicle.output
    files = [path for path in left.rglob("*") if path.is_file()]
    assert {"latency.csv", "manifest.json", "resources.csv", "run.log", "worker.log"} <= {path.name for path in files}
    texts = {str(path): path.read_bytes() for path in files}
    texts["command lines"] = "\n".join(command_lines).encode()
    texts["engine environment"] = "\n".join(engine_environment).encode()
    assert VEHICLE.encode() in texts["command lines"]  # The search covers the right processes.
    hidden = [password, *(line for key in certs.rglob("*.key") for line in _secret(key))]
    assert len(hidden) > 8
    for place, text in texts.items():
        for secret in hidden:
            assert secret.encode() not in text, place
    assert str(tmp_path / "password").encode() not in texts["engine environment"]


def _secret(key: Path) -> list[str]:
    """Returns the secret lines of a PEM key."""
    return [line for line in key.read_text(encoding="ascii").splitlines() if "KEY" not in line]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")

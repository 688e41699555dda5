"""A whole journey behind certificates and a password, and all that it says and leaves behind, searched for both."""

import base64
import getpass
import hashlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bench.load.worker_process import Worker
from edge.cli import READY
from shared.broker.broker import Broker
from shared.broker.certificate_authority import CertificateAuthority, Role
from shared.broker.mosquitto import Listener, configuration
from shared.runlog.latency_log import Outcome, read_rows
from tests.pipeline.rig import WAIT_S

USER = "fleet"
VEHICLE, WORKER = "car-1", "worker-1"


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """The certificates of a broker, a vehicle and a worker."""
    authority = CertificateAuthority(tmp_path / "certs")
    authority.broker(["127.0.0.1"], 1)
    authority.node(Role.VEHICLE, VEHICLE, 1)
    authority.node(Role.WORKER, WORKER, 1)
    return authority.folder


@pytest.fixture
def password() -> str:
    """One that stands nowhere else on this machine."""
    return secrets.token_urlsafe(24)


@pytest.fixture
def broker(certs: Path, tmp_path: Path, password: str) -> Iterator[Broker]:
    """The secured broker, but that a user and a password say who a client is."""
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    (tmp_path / "passwords").write_text(f"{USER}:$7$101${_text(salt)}${_text(digest)}\n", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    text = configuration("secured.conf", Listener("127.0.0.1", port)).replace("/mosquitto/certs", str(certs))
    lines = [line for line in text.splitlines() if not line.startswith(("use_identity_as_username", "acl_file"))]
    lines += [f"password_file {tmp_path / 'passwords'}", f"user {getpass.getuser()}"]
    config = tmp_path / "broker.conf"
    config.write_text("\n".join([*lines, ""]), encoding="utf-8")
    with Broker.start(config=config) as running:
        yield running


@pytest.mark.mosquitto
def test_neither_password_nor_key_is_left_anywhere(
    *,
    broker: Broker,
    certs: Path,
    models: Path,
    pictures: Callable[[int], Path],
    tmp_path: Path,
    password: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Logs are copied about, manifests are published, and every user of a machine reads its command lines."""
    url = broker.url.replace("mqtts://", f"mqtts://{USER}@")
    left = tmp_path / "left"  # By the journey.
    left.mkdir()
    (tmp_path / "password").write_text(f"{password}\n", encoding="utf-8")
    monkeypatch.setenv("SKYLANE_BROKER_PASSWORD_FILE", str(tmp_path / "password"))
    said: list[str] = []
    with Worker(
        url,
        models=models,
        model="tiny",
        name=WORKER,
        flags=("--isolate", "--certs", str(certs), "--resources", str(left / "resources.csv")),
        on_line=said.append,
    ) as worker:
        monkeypatch.delenv("SKYLANE_BROKER_PASSWORD_FILE")
        monkeypatch.setenv("SKYLANE_BROKER_PASSWORD", password)
        flags = ["--broker", url, "--certs", str(certs), "--vehicle", VEHICLE, "--model", "tiny", "--out", left / "run"]
        vehicle = subprocess.Popen(
            [sys.executable, "-m", "skylane", "edge", "play", *map(str, [pictures(5), *flags]), "--wait-for-go"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert vehicle.stdout is not None
        greeting = next(line for line in vehicle.stdout if line.startswith(READY))
        engines = psutil.Process(worker.pid).children(recursive=True)
        assert engines  # The model's own process.
        running = [psutil.Process(vehicle.pid), psutil.Process(worker.pid), psutil.Process(broker.pid), *engines]
        command_lines = [" ".join(process.cmdline()) for process in running]
        models_know = [f"{name}={value}" for engine in engines for name, value in engine.environ().items()]
        told, _ = vehicle.communicate("go\n", timeout=WAIT_S)
    assert [row["outcome"] for row in read_rows(left / "run")] == [Outcome.ANSWERED] * 5, told
    files = [path for path in left.rglob("*") if path.is_file()]
    assert {"latency.csv", "manifest.json", "resources.csv"} <= {path.name for path in files}
    texts = {str(path): path.read_bytes() for path in files}
    texts["stdout"] = f"{greeting}{told}".encode()
    texts["worker"] = "\n".join(said).encode()
    texts["command lines"] = "\n".join(command_lines).encode()
    texts["what the model sees"] = "\n".join(models_know).encode()
    assert VEHICLE.encode() in texts["command lines"]  # What is searched is what was meant.
    hidden = [password, *(line for key in certs.rglob("*.key") for line in _secret(key))]
    assert len(hidden) > 8
    for place, text in texts.items():
        for secret in hidden:
            assert secret.encode() not in text, place
    assert str(tmp_path / "password").encode() not in texts["what the model sees"]


def _secret(key: Path) -> list[str]:
    """The lines of a key in PEM that give it away."""
    return [line for line in key.read_text(encoding="ascii").splitlines() if "KEY" not in line]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")

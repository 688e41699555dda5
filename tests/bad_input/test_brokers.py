import base64
import hashlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.broker.broker import Broker
from tests.bad_input.worker import flags_of, working
from tests.pipeline.rig import connect


def test_missing_broker_is_reported_after_the_timeout(
    fails: Callable[..., str], image_folder: Callable[[int], Path], tmp_path: Path
) -> None:
    """The vehicle retries until the connect timeout ends."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"mqtt://127.0.0.1:{probe.getsockname()[1]}"
    line = fails("edge", "play", image_folder(1), *flags_of(url, tmp_path / "run"), "--connect-timeout", "0.4")
    assert f"no broker at {url} after 0.4 s" in line
    assert "start one with 'skylane broker' or give its address with --broker" in line
    assert not (tmp_path / "run").exists()


def test_missing_worker_and_missing_model_are_reported(
    fails: Callable[..., str], mosquitto_broker: Broker, image_folder: Callable[[int], Path], tmp_path: Path
) -> None:
    """A broker without a worker, then with a worker of another model."""
    url, source = mosquitto_broker.url, image_folder(1)
    flags = ("--broker", url, "--out", tmp_path / "run", "--connect-timeout", "0.4")
    assert "start one with 'skylane cloud serve'" in fails("edge", "play", source, *flags)
    with working(connect(url)):
        line = fails("edge", "play", source, *flags, "--model", "tinny")
    assert "no worker serves model 'tinny': did you mean tiny?" in line


@pytest.mark.mosquitto
def test_wrong_password_is_reported_without_printing_it(
    fails: Callable[..., str], image_folder: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mosquitto rejects the password from its own password file."""
    salt = b"skylane-salt"
    digest = hashlib.pbkdf2_hmac("sha512", b"right", salt, 101)
    passwords = tmp_path / "passwords"
    passwords.write_text(f"car:$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nuser root\nallow_anonymous false\npassword_file {passwords}\n")
    monkeypatch.setenv("SKYLANE_BROKER_PASSWORD", "wrong-secret")
    with Broker.start(config=config):
        flags = flags_of(f"mqtt://car@127.0.0.1:{port}", tmp_path / "run")
        line = fails("edge", "play", image_folder(1), *flags)
    assert "SKYLANE_BROKER_PASSWORD" in line
    assert "wrong-secret" not in line

"""What the gateway checks before models are loaded."""

import subprocess
from pathlib import Path

import pytest

from cloud.gateway.gateway import GatewayError, check
from cloud.gateway.settings import GatewaySettings
from shared.authority import Authority


def test_a_locked_key_is_told_and_its_password_not_asked_for(tmp_path: Path) -> None:
    """The library asks the terminal, where a service's start would wait for ever."""
    certificate = Authority(tmp_path / "certs").broker(["127.0.0.1"], 1).file
    locked = tmp_path / "locked.key"
    unlocked = certificate.with_suffix(".key")
    command = ["openssl", "pkcs8", "-topk8", "-passout", "pass:secret", "-in", str(unlocked), "-out", str(locked)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    check(GatewaySettings(http="127.0.0.1:0", tls_cert=certificate, tls_key=unlocked))
    with pytest.raises(GatewayError, match=r"locked\.key is locked by a password"):
        check(GatewaySettings(http="127.0.0.1:0", tls_cert=certificate, tls_key=locked))

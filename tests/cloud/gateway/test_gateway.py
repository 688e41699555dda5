"""What the gateway checks before models are loaded."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloud.gateway.gateway import GatewayError, check
from cloud.gateway.settings import GatewaySettings
from shared.broker.certificate_authority import CertificateAuthority
from shared.network.certificate_expiry import ExpiredError


def test_a_locked_key_is_told_and_its_password_not_asked_for(tmp_path: Path) -> None:
    """The library asks the terminal, where a service's start would wait for ever."""
    certificate = CertificateAuthority(tmp_path / "certs").broker(["127.0.0.1"], 1).file
    locked = tmp_path / "locked.key"
    unlocked = certificate.with_suffix(".key")
    command = ["openssl", "pkcs8", "-topk8", "-passout", "pass:secret", "-in", str(unlocked), "-out", str(locked)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    check(GatewaySettings(http="127.0.0.1:0", tls_cert=certificate, tls_key=unlocked))
    with pytest.raises(GatewayError, match=r"locked\.key is locked by a password"):
        check(GatewaySettings(http="127.0.0.1:0", tls_cert=certificate, tls_key=locked))


def test_an_expired_certificate_is_told_with_its_date(tmp_path: Path) -> None:
    """Every caller would refuse it, long after the models were loaded."""
    CertificateAuthority(tmp_path)
    long_ago = datetime.now(UTC) - timedelta(days=30)
    certificate = CertificateAuthority(tmp_path, now=long_ago).broker(["127.0.0.1"], 5).file
    settings = GatewaySettings(http="127.0.0.1:0", tls_cert=certificate, tls_key=certificate.with_suffix(".key"))
    with pytest.raises(ExpiredError, match=rf"server\.crt expired on {long_ago + timedelta(days=5):%Y-%m-%d}"):
        check(settings)

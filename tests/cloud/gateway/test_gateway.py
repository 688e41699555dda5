"""Checks of the gateway's settings before models are loaded."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloud.gateway.gateway import GatewayError, check_settings
from cloud.gateway.settings import GatewaySettings
from ops.broker.certificate_authority import CertificateAuthority
from shared.network.certificate_expiry import ExpiredError


def test_a_key_with_a_password_is_an_error(tmp_path: Path) -> None:
    """OpenSSL would prompt at the terminal, where the start of a service would wait forever."""
    certificate = CertificateAuthority(tmp_path / "certs").broker(["127.0.0.1"], 1).file
    locked = tmp_path / "locked.key"
    unlocked = certificate.with_suffix(".key")
    command = ["openssl", "pkcs8", "-topk8", "-passout", "pass:secret", "-in", str(unlocked), "-out", str(locked)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    check_settings(GatewaySettings(http="127.0.0.1:0", tls_cert=certificate, tls_key=unlocked))
    with pytest.raises(GatewayError, match=r"locked\.key is protected by a password"):
        check_settings(GatewaySettings(http="127.0.0.1:0", tls_cert=certificate, tls_key=locked))


def test_an_expired_certificate_is_an_error_with_its_date(tmp_path: Path) -> None:
    """Otherwise callers would reject it, long after the models were loaded."""
    CertificateAuthority(tmp_path)
    issued = datetime.now(UTC) - timedelta(days=30)
    certificate = CertificateAuthority(tmp_path, now=issued).broker(["127.0.0.1"], 5).file
    settings = GatewaySettings(http="127.0.0.1:0", tls_cert=certificate, tls_key=certificate.with_suffix(".key"))
    with pytest.raises(ExpiredError, match=rf"server\.crt expired on {issued + timedelta(days=5):%Y-%m-%d}"):
        check_settings(settings)

"""Replaces a vehicle's certificate by ones that a broker must reject."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ops.broker.certificate_authority import CertificateAuthority, Role


def use_self_signed(folder: Path, authority: CertificateAuthority) -> None:  # noqa: ARG001 (as the others)
    """Uses a self-signed certificate."""
    other = CertificateAuthority(folder / "other")
    shutil.copy(other.certificate_file, folder / "car-1.crt")
    shutil.copy(other.key_file, folder / "car-1.key")


def use_expired(folder: Path, authority: CertificateAuthority) -> None:
    """Uses a certificate of the right authority that has expired."""
    other = folder / "other"
    shutil.copytree(authority.folder, other)
    CertificateAuthority(other, now=datetime.now(UTC) - timedelta(days=10)).node(Role.VEHICLE, "old", 5)
    copy_pair(other, folder, "old", "car-1")


def copy_pair(source: Path, target: Path, name: str, new_name: str | None = None) -> None:
    """Copies a certificate and its key to another folder."""
    for kind in ("crt", "key"):
        shutil.copy(source / f"{name}.{kind}", target / f"{new_name or name}.{kind}")

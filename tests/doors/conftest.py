"""A secured broker as `skylane broker` runs it, and the certificates of two vehicles, a worker and an operator."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.broker.broker import Broker
from shared.broker.certificate_authority import CertificateAuthority, Role
from tests.conftest import need_mosquitto


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """Whom the broker believes."""
    authority = CertificateAuthority(tmp_path_factory.mktemp("doors") / "certs")
    authority.broker(["127.0.0.1"], 1)
    for name in ("car-1", "car-2"):
        authority.node(Role.VEHICLE, name, 1)
    authority.node(Role.WORKER, "worker-1", 1)
    authority.node(Role.OPERATOR, "anna", 1)
    return authority


@pytest.fixture(scope="session")
def certs(authority: CertificateAuthority) -> Path:
    """The folder with all of their certificates."""
    return authority.folder


@pytest.fixture(scope="module")
def secured(certs: Path) -> Iterator[Broker]:
    """Mosquitto with the secured settings, for the tests of a module: what they had it retain is no other's."""
    need_mosquitto()
    with Broker.start(secured=certs) as broker:
        yield broker

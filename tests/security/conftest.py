"""A secured broker as `skylane broker` runs it, with certificates of two vehicles, a worker, an operator and a viewer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.broker.broker import Broker
from ops.broker.certificate_authority import CertificateAuthority, Role
from tests.conftest import need_mosquitto


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """The certificate authority of the broker."""
    authority = CertificateAuthority(tmp_path_factory.mktemp("security") / "certs")
    authority.broker(["127.0.0.1"], 1)
    for name in ("car-1", "car-2"):
        authority.node(Role.VEHICLE, name, 1)
    authority.node(Role.WORKER, "worker-1", 1)
    authority.node(Role.OPERATOR, "anna", 1)
    authority.node(Role.VIEWER, "vera", 1)
    return authority


@pytest.fixture(scope="session")
def certs(authority: CertificateAuthority) -> Path:
    """The folder with all certificates."""
    return authority.folder


@pytest.fixture(scope="module")
def secured(certs: Path) -> Iterator[Broker]:
    """Mosquitto with the secured configuration; per module, as it retains messages of the tests."""
    need_mosquitto()
    with Broker.start(secured=certs) as broker:
        yield broker

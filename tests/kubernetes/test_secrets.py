"""kubernetes/create-secrets makes every file that the secured overlays mount, and no other."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.pods import create_secrets
from tests.kubernetes.rendering import FOLDER, ROOT, container_of, flags_of, kinds, needs_kubectl

pytestmark = needs_kubectl


Secrets = dict[str, dict[str, bytes]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the certificates."""
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def secrets(folder: Path) -> Secrets:
    """The Secrets, and their files in that folder."""
    return create_secrets(folder)


def test_a_second_run_keeps_every_certificate_and_token(folder: Path, secrets: Secrets) -> None:
    """Otherwise each run would lock out the nodes and callers that have the files of the one before."""
    again = create_secrets(folder)
    for name in ("broker-certs", "worker-certs"):
        again[name]["crl.pem"] = secrets[name]["crl.pem"]  # Each run signs the list again.
    assert again == secrets


def test_the_guide_lists_the_files_of_each_secret(secrets: Secrets) -> None:
    """Operators with an authority of their own make the same Secrets by hand."""
    guide = (ROOT / "docs" / "guides" / "kubernetes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (`[^|]+`) \|", guide, re.MULTILINE)
    listed = {name: {*re.findall(r"`([^`]+)`", cell)} for name, cell in rows}
    assert {name: listed[name] for name in secrets} == {name: {*files} for name, files in secrets.items()}


def test_every_file_that_a_pod_names_is_in_its_secret(secrets: Secrets) -> None:
    """A missing file ends the broker or the worker at its start."""
    mounted = {"/certs/": "worker-certs", "/gateway/": "gateway"}
    named = [value for values in flags_of(container_of("secured", "worker")).values() for value in values]
    files = [(mount, value) for value in named for mount in mounted if value.startswith(mount)]
    assert len(files) == 6
    assert all(value.removeprefix(mount) in secrets[mounted[mount]] for mount, value in files)
    config = (ROOT / "mosquitto" / "secured.conf").read_text(encoding="utf-8")
    assert {*re.findall(r"^\w+ /mosquitto/certs/(\S+)$", config, re.MULTILINE)} == {*secrets["broker-certs"]}
    (monitor,) = kinds("autoscaling/keda", "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for key in (endpoint["tlsConfig"]["ca"]["secret"], endpoint["authorization"]["credentials"]):
        assert key["key"] in secrets[key["name"]]
    assert f"prometheus {secrets['gateway']['prometheus-token'].decode()}\n" in secrets["gateway"]["tokens"].decode()


def test_no_secret_has_the_key_of_an_authority_or_of_another_node(folder: Path, secrets: Secrets) -> None:
    """A compromised pod must not be able to act as another one."""
    keys = {path.read_bytes(): path for path in (folder / "certs").rglob("*.key")}
    assert len(keys) == 5
    inside = [keys[data] for files in secrets.values() for data in files.values() if data in keys]
    assert sorted(path.name for path in inside) == ["server.key", "server.key", "worker.key"]
    assert len({*inside}) == 3


def test_the_command_explains_itself(tmp_path: Path) -> None:
    """Without a host name, the certificate of the broker would fit no address of the cluster."""
    ended = subprocess.run([FOLDER / "create-secrets", tmp_path / "certs"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "create-secrets FOLDER BROKER_HOST" in ended.stderr
    assert not (tmp_path / "certs").exists()

"""Requirements on docker-compose.yml."""

import json
import re

import jsonschema
import pytest

import cloud.node
import edge.node
from tests.compose_file import COMPOSE, ROOT, SERVICES

WORKERS = ("cloud", "gateway", "cloud-gpu", "secured-cloud")
VEHICLES = ("edge", "secured-edge")
CERTIFICATES = {"broker-certs": "secured-broker", "worker-certs": "secured-cloud", "vehicle-certs": "secured-edge"}
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}


def mounts() -> list[tuple[str, str]]:
    """Returns all pairs of service and mount, "source:target[:mode]"."""
    return [(name, mount) for name, service in SERVICES.items() for mount in service.get("volumes", ())]


def test_the_file_matches_the_compose_specification() -> None:
    """Some engines ignore a misspelt key, and others fail."""
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.Draft201909Validator(schema).validate(COMPOSE)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened(name: str) -> None:
    """Frames are untrusted input; an exploit must stay in its container."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert not service.get("privileged")


def test_no_service_is_reachable_from_other_machines() -> None:
    """The development broker accepts every client."""
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_only_the_secured_broker_can_be_published() -> None:
    """A variable publishes it; every client needs a certificate."""
    services = COMPOSE["services"]
    opened = {name for name in services for port in services[name].get("ports", ()) if port.startswith("${")}
    assert opened == {"secured-broker"}


def test_unpublished_services_can_be_scaled() -> None:
    """Two containers, as with `--scale cloud=2`, cannot share a host port or a name at the broker."""
    for name in ("cloud", "secured-cloud"):
        service = SERVICES[name]
        assert not {"ports", "container_name", "hostname"} & service.keys()
        assert not any(word.startswith("--worker") for word in service["command"])


@pytest.mark.parametrize("name", [*WORKERS, *VEHICLES])
def test_a_health_check_reads_the_health_file_of_its_node(name: str) -> None:
    """The check starts no Python process and does not appear in the broker's log."""
    service = SERVICES[name]
    file = next(word for word in service["command"] if word.startswith("--health-file=")).partition("=")[2]
    assert service["healthcheck"]["test"][:1] == ["CMD-SHELL"]
    assert service["healthcheck"]["test"][1].startswith(f"find {file} ")
    assert file.startswith(service["tmpfs"][0])


def test_health_checks_start_no_python_and_connect_to_no_broker() -> None:
    """A check runs every few seconds, so it must be cheap and leave the broker's log empty."""
    checks = [" ".join(service.get("healthcheck", {}).get("test", ())) for service in SERVICES.values()]
    assert not [check for check in checks if re.search(r"python|skylane |mosquitto_|curl|wget|\bnc\b", check)]


def test_only_the_certificate_service_runs_as_root() -> None:
    """It writes files for two users, has no network and ends before the nodes start."""
    service = SERVICES["certs"]
    assert service["user"] == "0:0"
    assert service["cap_add"] == ["CHOWN", "DAC_OVERRIDE", "FOWNER"]
    assert service["network_mode"] == "none"
    assert "restart" not in service
    others = [each for name, each in SERVICES.items() if name != "certs"]
    assert not [each for each in others if "cap_add" in each or each.get("user", "1883:1883") != "1883:1883"]


def test_no_service_can_read_the_key_of_another() -> None:
    """A compromised node must not be able to act as another one. Only the certificate service mounts the authority."""
    for volume, owner in CERTIFICATES.items():
        mounted = {name: mount for name, mount in mounts() if mount.split(":")[0] == volume}
        assert mounted.keys() == {"certs", owner}
        assert mounted[owner].endswith(":ro")
    assert [name for name, mount in mounts() if mount.startswith("authority:")] == ["certs"]
    assert not [name for name, mount in mounts() if name != "certs" and mount.startswith("./mosquitto:")]


def test_the_secured_services_use_only_the_secured_broker() -> None:
    """`docker compose --profile secured up secured-edge` does not start the development broker."""
    needed = {"secured-edge"}
    while more := {other for name in needed for other in SERVICES[name].get("depends_on", {})} - needed:
        needed |= more
    assert needed == {"secured-edge", "secured-cloud", "secured-broker", "certs", "drive"}
    for name in ("secured-edge", "secured-cloud"):
        assert SERVICES[name]["environment"]["SKYLANE_BROKER"] == "mqtts://secured-broker:8883"


def test_the_file_contains_no_secrets() -> None:
    """It is committed to the repository."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert not re.search(r"(?i)password|secret|token|api_?key|://[^/\s]*@", text)


def test_every_mounted_path_exists_and_every_volume_is_declared() -> None:
    """Docker creates an empty folder for a missing path, and the node fails much later."""
    for service, mount in mounts():
        source = mount.split(":")[0]
        if source.startswith("."):
            assert (ROOT / source).exists(), (service, source)
            assert mount.endswith(":ro"), (service, mount)
        else:
            assert source in COMPOSE["volumes"], (service, source)


def test_every_dependency_can_become_ready() -> None:
    """Waiting for the health of a service without a health check would never end."""
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] in CONDITIONS
            profiles = SERVICES[needed].get("profiles", service.get("profiles", ()))
            assert {*service.get("profiles", ())} <= {*profiles}, (name, needed)
            assert "profiles" in service or "profiles" not in SERVICES[needed], (name, needed)
            if how["condition"] == "service_healthy":
                assert SERVICES[needed]["healthcheck"]["test"], (name, needed)


def test_nodes_have_time_to_drain() -> None:
    """By default an engine sends SIGKILL after 10 s, which loses frames in progress."""
    drains_s = dict.fromkeys(VEHICLES, edge.node.DRAIN_S) | dict.fromkeys(WORKERS, cloud.node.DRAIN_S)
    for name, limit_s in drains_s.items():
        assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > limit_s


def test_the_gpu_worker_needs_its_profile() -> None:
    """The device reservation is an error on machines without a GPU."""
    services = {name: service for name, service in SERVICES.items() if "deploy" in service}
    assert services.keys() == {"cloud-gpu"}
    assert services["cloud-gpu"]["profiles"] == ["gpu"]
    devices = services["cloud-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
    assert {"--http=0.0.0.0:8000", "--grpc=0.0.0.0:8001"} <= {*services["cloud-gpu"]["command"]}
    assert [port.rpartition(":")[2] for port in services["cloud-gpu"]["ports"]] == ["8000", "8001"]
    assert (ROOT / "cloud" / services["cloud-gpu"]["build"]["args"]["LOCK"]).is_file()


@pytest.mark.parametrize("node", ["edge", "cloud"])
def test_images_are_built_from_lock_files_and_run_unprivileged(node: str) -> None:
    """Pinned libraries make builds reproducible, and an unprivileged process is harder to escape from."""
    lines = (ROOT / node / "Dockerfile").read_text(encoding="utf-8").splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert installs
    assert all("--require-hashes" in line or "--no-deps --no-build-isolation" in line for line in installs)
    assert "USER 10001:10001" in lines
    assert sum(line.startswith("FROM ") for line in lines) == 2
    assert any(line.startswith("HEALTHCHECK ") for line in lines)


@pytest.mark.parametrize(
    "lock",
    [
        "requirements.lock",
        "requirements-dev.lock",
        "edge/requirements.lock",
        "cloud/requirements.lock",
        "cloud/requirements-gpu.lock",
    ],
)
def test_lock_files_pin_every_library_by_hash_and_name_no_index(lock: str) -> None:
    """The hash protects against replaced files, and a URL would prevent the use of a mirror."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert not re.search(r"://|^\s*(-i|-f|--index|--find-links|--extra-index)", text, re.MULTILINE)
    libraries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(libraries) > 20
    assert all("==" in library and "--hash=sha256:" in library for library in libraries)

"""docker-compose.yml, read as Compose reads it."""

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
    """Every (service, "source:target[:mode]")."""
    return [(name, mount) for name, service in SERVICES.items() for mount in service.get("volumes", ())]


def test_is_valid_by_the_specification() -> None:
    """A misspelt key is silently ignored by some engines and fatal for others."""
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text(encoding="utf-8"))
    jsonschema.Draft201909Validator(schema).validate(COMPOSE)


def test_the_schema_refuses_a_misspelt_key() -> None:
    """The check above must be one that can fail."""
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text(encoding="utf-8"))
    with pytest.raises(jsonschema.ValidationError, match="readonly"):
        jsonschema.Draft201909Validator(schema).validate({"services": {"edge": {"readonly": True}}})


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened(name: str) -> None:
    """A camera's frames are hostile input: what breaks a node must not get further than its container."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert not service.get("privileged")


def test_no_service_is_reachable_from_other_machines() -> None:
    """The broker here lets anyone in."""
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_only_the_secured_broker_can_be_opened_to_other_machines() -> None:
    """By a variable; every client then needs a certificate."""
    services = COMPOSE["services"]
    opened = {name for name in services for port in services[name].get("ports", ()) if port.startswith("${")}
    assert opened == {"secured-broker"}


def test_services_that_are_not_published_can_be_scaled() -> None:
    """`--scale cloud=2`: two containers cannot have one port of the host, nor one name at the broker."""
    for name in ("cloud", "secured-cloud"):
        service = SERVICES[name]
        assert not {"ports", "container_name", "hostname"} & service.keys()
        assert not any(word.startswith("--worker") for word in service["command"])


@pytest.mark.parametrize("name", [*WORKERS, *VEHICLES])
def test_a_node_writes_the_health_file_that_its_check_looks_at(name: str) -> None:
    """Looking at a file starts no Python every ten seconds, and writes no line into the broker's log."""
    service = SERVICES[name]
    file = next(word for word in service["command"] if word.startswith("--health-file=")).partition("=")[2]
    assert service["healthcheck"]["test"][:1] == ["CMD-SHELL"]
    assert service["healthcheck"]["test"][1].startswith(f"find {file} ")
    assert file.startswith(service["tmpfs"][0])


def test_health_checks_start_no_python_and_connect_to_no_broker() -> None:
    """A check every few seconds must cost nothing, and the log of an idle broker stays quiet."""
    checks = [" ".join(service.get("healthcheck", {}).get("test", ())) for service in SERVICES.values()]
    assert not [check for check in checks if re.search(r"python|skylane |mosquitto_|curl|wget|\bnc\b", check)]


def test_only_the_service_that_hands_out_certificates_is_root() -> None:
    """It gives files to two users, reaches no network and ends before the nodes start."""
    service = SERVICES["certs"]
    assert service["user"] == "0:0"
    assert service["cap_add"] == ["CHOWN", "DAC_OVERRIDE", "FOWNER"]
    assert service["network_mode"] == "none"
    assert "restart" not in service
    others = [each for name, each in SERVICES.items() if name != "certs"]
    assert not [each for each in others if "cap_add" in each or each.get("user", "1883:1883") != "1883:1883"]


def test_a_service_has_no_other_service_s_key() -> None:
    """A node that is taken over must not become another one; the authority is mounted nowhere but where it signs."""
    for volume, owner in CERTIFICATES.items():
        mounted = {name: mount for name, mount in mounts() if mount.split(":")[0] == volume}
        assert mounted.keys() == {"certs", owner}
        assert mounted[owner].endswith(":ro")
    assert [name for name, mount in mounts() if mount.startswith("authority:")] == ["certs"]
    assert not [name for name, mount in mounts() if name != "certs" and mount.startswith("./mosquitto:")]


def test_the_secured_services_reach_the_secured_broker_alone() -> None:
    """`docker compose --profile secured up secured-edge` starts what it depends on, and no broker without a lock."""
    needed = {"secured-edge"}
    while more := {other for name in needed for other in SERVICES[name].get("depends_on", {})} - needed:
        needed |= more
    assert needed == {"secured-edge", "secured-cloud", "secured-broker", "certs", "drive"}
    for name in ("secured-edge", "secured-cloud"):
        assert SERVICES[name]["environment"]["SKYLANE_BROKER"] == "mqtts://secured-broker:8883"


def test_holds_no_secrets() -> None:
    """A password in a file that is committed is a password of everyone's."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert not re.search(r"(?i)password|secret|token|api_?key|://[^/\s]*@", text)


def test_everything_mounted_is_declared_or_there() -> None:
    """Docker makes an empty folder of a path that is missing, and the node fails on that much later."""
    for service, mount in mounts():
        source = mount.split(":")[0]
        if source.startswith("."):
            assert (ROOT / source).exists(), (service, source)
            assert mount.endswith(":ro"), (service, mount)
        else:
            assert source in COMPOSE["volumes"], (service, source)


def test_what_is_waited_for_can_be_reached() -> None:
    """Waiting for the health of a service without a check is waiting for ever."""
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] in CONDITIONS
            profiles = SERVICES[needed].get("profiles", service.get("profiles", ()))
            assert {*service.get("profiles", ())} <= {*profiles}, (name, needed)
            assert "profiles" in service or "profiles" not in SERVICES[needed], (name, needed)
            if how["condition"] == "service_healthy":
                assert SERVICES[needed]["healthcheck"]["test"], (name, needed)


def test_a_node_that_drains_is_not_killed_meanwhile() -> None:
    """An engine sends SIGKILL after 10 s where nothing else is said, and the frames in hand are lost."""
    drains_s = dict.fromkeys(VEHICLES, edge.node._DRAIN_S) | dict.fromkeys(WORKERS, cloud.node._DRAIN_S)
    for name, limit_s in drains_s.items():
        assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > limit_s


def test_gpu_worker_starts_only_when_asked_for() -> None:
    """Most machines have no GPU, and there the device reservation is an error."""
    services = {name: service for name, service in SERVICES.items() if "deploy" in service}
    assert services.keys() == {"cloud-gpu"}
    assert services["cloud-gpu"]["profiles"] == ["gpu"]
    devices = services["cloud-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
    assert {"--http=0.0.0.0:8000", "--grpc=0.0.0.0:8001"} <= {*services["cloud-gpu"]["command"]}
    assert [port.rpartition(":")[2] for port in services["cloud-gpu"]["ports"]] == ["8000", "8001"]
    assert (ROOT / "cloud" / services["cloud-gpu"]["build"]["args"]["LOCK"]).is_file()


@pytest.mark.parametrize("room", ["edge", "cloud"])
def test_images_are_built_from_the_lock_and_run_as_nobody_special(room: str) -> None:
    """An image of unpinned libraries is another one every day; a root process needs one bug less to be on the host."""
    lines = (ROOT / room / "Dockerfile").read_text(encoding="utf-8").splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert installs
    assert all("--require-hashes" in line or "--no-deps --no-build-isolation" in line for line in installs)
    assert "USER 10001:10001" in lines
    assert sum(line.startswith("FROM ") for line in lines) == 2
    assert any(line.startswith("HEALTHCHECK ") for line in lines)


def test_a_vehicle_carries_no_tensorflow() -> None:
    """It is 1.5 GB that a vehicle never loads."""
    assert "tensorflow" not in (ROOT / "edge" / "requirements.lock").read_text(encoding="utf-8")


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
def test_locks_pin_every_library_by_hash_and_name_no_place(lock: str) -> None:
    """Without a hash anything may be served under a name; with an address in it no mirror will do."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert not re.search(r"://|^\s*(-i|-f|--index|--find-links|--extra-index)", text, re.MULTILINE)
    libraries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(libraries) > 20
    assert all("==" in library and "--hash=sha256:" in library for library in libraries)

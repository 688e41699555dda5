"""The images, built and brought up by the engine that answers, as docker-compose.yml says."""

import csv
import gc
import io
import re
import tarfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import DockerException, ImageNotFound
from docker.models.containers import Container

from shared.broker.certificate_authority import CertificateAuthority, Role
from tests.ci_script import ci_script
from tests.compose_file import COMPOSE, ROOT, SERVICES

BASES = ("python:3.11-slim-bookworm", SERVICES["broker"]["image"])
FRAMES = 6
DRAINING_FRAMES = 120  # Enough that a worker is asked to end in the middle of them.
KILLED = 128 + 9
SHARED_FRAMES = 40  # Enough that each of two workers gets some.
BYTES = {"m": 1 << 20, "g": 1 << 30}
MINE = "/runs", "/tmp"
# Folders that an engine makes writable in every container; what is there is gone with it, and shared with no other.
ENGINES = "/dev/mqueue", "/dev/shm", "/run", "/var/tmp"
READY_S = 180.0


def connected() -> docker.DockerClient | None:
    """A client of the engine; None where none answers."""
    try:
        return docker.from_env(timeout=900)
    except DockerException:
        return None


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    """The Docker engine, or podman's, that DOCKER_HOST or the usual socket leads to."""
    client = connected()
    if client is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # The SDK leaves the socket of its attempt open.
            gc.collect()
        pytest.skip("no container engine answers: start Docker, or set DOCKER_HOST")
    for image in BASES:
        try:
            client.images.get(image)
        except ImageNotFound:
            try:
                client.images.pull(image)
            except DockerException as error:
                pytest.skip(f"the engine has no {image} and cannot pull it: {error}")
    yield client
    client.close()


@pytest.fixture(scope="module")
def images(engine: docker.DockerClient) -> Mapping[str, str]:
    """The tags of both images, by their names in the compose file; built as that says."""
    tags = {}
    for name in ("edge", "cloud"):
        image = SERVICES[name]["image"]
        tags[image] = f"{image}:test"
        dockerfile = SERVICES[name]["build"]["dockerfile"]
        engine.images.build(path=str(ROOT), dockerfile=dockerfile, tag=tags[image], rm=True)
    return tags


@pytest.fixture(scope="module")
def start(engine: docker.DockerClient, images: Mapping[str, str]) -> Iterator[Callable[..., Container]]:
    """Starts a service of the compose file, in a network and with volumes of this module's own."""
    mark = f"skylane-test-{uuid.uuid4().hex[:8]}"
    network = engine.networks.create(mark, driver="bridge")
    volumes = {name: engine.volumes.create(f"{mark}-{name}") for name in COMPOSE["volumes"]}
    containers: list[Container] = []

    def start_service(name: str, **changes: Any) -> Container:
        service = {**SERVICES[name], **changes}
        mounts = [mount.split(":") for mount in service["volumes"]]
        is_reachable = service.get("network_mode") != "none"
        container = engine.containers.create(
            images.get(service["image"], service["image"]),
            command=service.get("command"),
            entrypoint=service.get("entrypoint"),
            environment=service.get("environment", {}),
            user=service.get("user"),
            read_only=service["read_only"],
            cap_drop=service["cap_drop"],
            cap_add=service.get("cap_add", []),
            security_opt=service["security_opt"],
            tmpfs=dict.fromkeys(service["tmpfs"], ""),
            mem_limit=service["mem_limit"],
            pids_limit=service["pids_limit"],
            init=service["init"],
            network=mark if is_reachable else None,
            network_mode=None if is_reachable else "none",
            networking_config={mark: engine.api.create_endpoint_config(aliases=[name])} if is_reachable else None,
            volumes=[
                ":".join([volumes[source].name if source in volumes else str((ROOT / source).resolve()), *rest])
                for source, *rest in mounts
            ],
        )
        containers.append(container)
        container.start()
        return container

    try:
        yield start_service
    finally:
        for container in reversed(containers):
            container.remove(force=True, v=True)
        network.remove()
        for volume in volumes.values():
            volume.remove(force=True)


def run_in(container: Container, command: list[str]) -> tuple[int, str]:
    """Run a command in a running container, one that may be repeated; its exit code and what it said."""
    for _ in range(3):  # Podman 4 may lose what a command says that ends at once.
        code, said = container.exec_run(command)
        if said or code:
            break
    assert isinstance(said, bytes)
    return code or 0, said.decode()


def check_health(name: str, container: Container) -> tuple[int, str]:
    """Run a service's own health check, as an engine runs it; its exit code and what it said."""
    kind, *words = SERVICES[name]["healthcheck"]["test"]
    return run_in(container, ["/bin/sh", "-c", *words] if kind == "CMD-SHELL" else words)


def await_healthy(name: str, container: Container) -> None:
    """Run a service's health check until it passes: engines without systemd do not run it by themselves."""
    pause = threading.Event()
    deadline = time.monotonic() + READY_S
    while True:
        container.reload()
        assert container.status == "running", container.logs().decode()
        code, said = check_health(name, container)
        if code == 0:
            return
        pause.wait(0.5)
        assert time.monotonic() < deadline, f"{name} is not healthy: {said}\n{container.logs().decode()}"


def read_log(edge: Container, run: str) -> list[dict[str, str]]:
    """The rows of a run in the volume of a vehicle that has ended, copied out as `docker compose cp` does it."""
    chunks, _ = edge.get_archive(f"{run}/latency.csv")
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        log = archive.extractfile("latency.csv")
        assert log is not None
        return list(csv.DictReader(io.StringIO(log.read().decode())))


def await_rows(edge: Container, log: str, text: str) -> None:
    """Wait until the log of a vehicle that plays tells of something."""
    deadline = time.monotonic() + READY_S
    while run_in(edge, ["grep", "-q", text, log])[0]:
        edge.reload()
        assert edge.status == "running", edge.logs().decode()
        assert time.monotonic() < deadline, edge.logs().decode()


@pytest.fixture(scope="module")
def served_model() -> Path:
    """The repository that the worker serves: the models folder of this checkout."""
    models = ROOT / "models"
    if not (models / "road-small" / "model.yaml").is_file():
        pytest.skip("models/road-small is not built: skylane model build road-small")
    return models


@pytest.fixture(scope="module")
def stack(start: Callable[..., Container], served_model: Path) -> Mapping[str, Container]:
    """Broker and cloud node, healthy."""
    broker = start("broker")
    await_healthy("broker", broker)
    assert served_model
    cloud = start("cloud")
    await_healthy("cloud", cloud)
    return {"broker": broker, "cloud": cloud}


@pytest.mark.parametrize("room", ["edge", "cloud"])
def test_an_image_knows_its_own_commands(engine: docker.DockerClient, images: Mapping[str, str], room: str) -> None:
    """What is missing in an image shows at its first import, long before a broker is needed."""
    image = images[f"skylane-{room}"]
    said = engine.containers.run(image, [room, "--help"], remove=True, network_mode="none")
    assert f"skylane {room} " in said.decode()


def test_a_vehicle_image_holds_no_tensorflow(engine: docker.DockerClient, images: Mapping[str, str]) -> None:
    """A vehicle downloads its image over the air."""
    command = ["-c", "import importlib.util as u; print(u.find_spec('tensorflow'), u.find_spec('pip'))"]
    said = engine.containers.run(
        images["skylane-edge"], command, entrypoint="python", remove=True, network_mode="none", stdout=True
    )
    assert said.decode().split() == ["None", "None"]


@pytest.mark.parametrize("room", ["edge", "cloud"])
def test_a_bill_of_materials_lists_what_the_image_holds(
    engine: docker.DockerClient, images: Mapping[str, str], room: str
) -> None:
    """It is made from the lock: whoever looks an advisory up in it must not miss a library that is there."""
    command = ["-c", "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"]
    image = images[f"skylane-{room}"]
    said = engine.containers.run(image, command, entrypoint="python", remove=True, network_mode="none")
    held = {normalised(library) for library in said.decode().split() if not library.startswith("skylane==")}
    sbom = ci_script("sbom")
    listed = next(image for image in sbom.IMAGES if image.name == f"skylane-{room}")
    assert held == {normalised(block.split()[0]) for block in sbom.requirements(listed)}


def normalised(library: str) -> str:
    """A library's name and version, the name as PEP 503 has it."""
    name, version = library.split("==")
    return f"{re.sub('[-_.]+', '-', name).lower()}=={version}"


@pytest.fixture(scope="module")
def vehicle(start: Callable[..., Container]) -> Container:
    """The vehicle's container, idle, so that commands can be run in it."""
    return start("edge", entrypoint=["sleep", "3600"], command=[])


@pytest.fixture(params=["broker", "cloud", "edge"])
def service(
    request: pytest.FixtureRequest, stack: Mapping[str, Container], vehicle: Container
) -> tuple[str, Container]:
    """Each service that runs, and its name."""
    return request.param, {**stack, "edge": vehicle}[request.param]


def test_no_service_is_root_or_can_become_it(service: tuple[str, Container]) -> None:
    """What breaks a decoder must find nothing to take over."""
    code, said = run_in(service[1], ["cat", "/proc/1/status"])
    status = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert code == 0
    assert "0" not in (*status["Uid"].split(), *status["Gid"].split())
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert run_in(service[1], ["id", "-u"])[1].strip() == status["Uid"].split()[0]


def test_a_service_has_no_more_memory_and_processes_than_it_may(service: tuple[str, Container]) -> None:
    """A picture that takes all memory must take its own container's, not the machine's."""
    name, container = service
    size, unit = SERVICES[name]["mem_limit"][:-1], SERVICES[name]["mem_limit"][-1]
    either = "cat /sys/fs/cgroup/{0}.max 2>/dev/null || cat /sys/fs/cgroup/{0}/{1}"  # Version 2 of cgroups, or 1.
    said = run_in(container, ["sh", "-c", either.format("memory", "memory.limit_in_bytes")])
    assert said == (0, f"{int(size) * BYTES[unit]}\n")
    said = run_in(container, ["sh", "-c", either.format("pids", "pids.max")])
    assert said == (0, f"{SERVICES[name]['pids_limit']}\n")


def test_a_vehicle_that_takes_too_much_memory_ends_alone(start: Callable[..., Container]) -> None:
    """The limit above is one that the kernel holds."""
    greedy = start("edge", entrypoint=["python", "-c", "held = b'x' * (3 << 30)"], command=[])
    assert greedy.wait(timeout=READY_S)["StatusCode"] == KILLED


def test_a_node_can_write_its_results_and_nothing_else(stack: Mapping[str, Container], vehicle: Container) -> None:
    """Whoever takes a node over must not be able to leave anything in it."""
    for container, mine in ((vehicle, {*MINE}), (stack["cloud"], {"/tmp", "/cache"})):
        find = "find / ( -path /proc -o -path /sys ) -prune -o -type d -writable -print -prune"
        found = run_in(container, find.split())[1].splitlines()
        written = {line for line in found if line.startswith("/")}  # It also tells which folders it may not look into.
        assert mine <= written <= {*mine, *ENGINES}
        for folder in ("/", "/opt/skylane", "/etc"):
            code, said = run_in(container, ["touch", f"{folder}/mine"])
            assert code != 0
            assert "Read-only file system" in said
    for folder in MINE:
        assert run_in(vehicle, ["touch", f"{folder}/mine"]) == (0, "")


def test_every_frame_of_a_drive_is_answered(
    start: Callable[..., Container],
    stack: Mapping[str, Container],
) -> None:
    """The whole journey between containers: rendered, sent, answered, and a row a frame in the volume."""
    assert stack
    drive = start("drive", entrypoint=["skylane", "bag", "make", "/runs/drive", "--frames", str(FRAMES)])
    assert drive.wait(timeout=READY_S)["StatusCode"] == 0, drive.logs().decode()
    play = ["edge", "play", "/runs/drive", "--closed-loop", "--out", "/runs/test"]
    edge = start("edge", command=play)
    assert edge.wait(timeout=READY_S)["StatusCode"] == 0, edge.logs().decode()
    assert [row["outcome"] for row in read_log(edge, "/runs/test")] == ["answered"] * FRAMES


def test_two_workers_of_one_service_share_the_frames(
    start: Callable[..., Container],
    stack: Mapping[str, Container],
) -> None:
    """`docker compose up --scale cloud=2`: no fixed name or port keeps the second worker from starting."""
    second = start("cloud")
    await_healthy("cloud", second)
    drive = start("drive", entrypoint=["skylane", "bag", "make", "/runs/shared", "--frames", str(FRAMES)])
    assert drive.wait(timeout=READY_S)["StatusCode"] == 0, drive.logs().decode()
    play = ["edge", "play", "/runs/shared", "--closed-loop", "--loop", "--frames", str(SHARED_FRAMES), "--no-sinks"]
    edge = start("edge", command=[*play, "--vehicle", "sharing", "--out", "/runs/sharing"])
    assert edge.wait(timeout=READY_S)["StatusCode"] == 0, edge.logs().decode()
    rows = read_log(edge, "/runs/sharing")
    second.stop(timeout=60)
    assert [row["outcome"] for row in rows] == ["answered"] * SHARED_FRAMES
    assert {host_of(row) for row in rows} == {host_name(stack["cloud"]), host_name(second)}


def host_of(row: Mapping[str, str]) -> str:
    """The host that a worker without a name of its own runs on."""
    return row["worker"].rpartition("-")[0]


def host_name(container: Container) -> str:
    """A container's host name."""
    name: str = container.attrs["Config"]["Hostname"]
    return name


def test_health_checks_leave_no_line_in_the_broker_s_log(stack: Mapping[str, Container]) -> None:
    """54 lines a minute hid what happened to the nodes; of an idle deployment nothing is to be said."""
    before = stack["broker"].logs()
    for name in ("broker", "cloud"):
        assert check_health(name, stack[name]) == (0, "")
    assert stack["broker"].logs() == before


def test_a_health_check_fails_where_nothing_listens_or_is_online(vehicle: Container) -> None:
    """The checks above can fail: in a container that runs neither broker nor node they do."""
    for name in ("broker", "secured-broker", "edge"):
        assert check_health(name, vehicle)[0] != 0


def test_a_worker_keeps_the_engine_that_it_measured(start: Callable[..., Container]) -> None:
    """`--engine auto` measures for a minute; the next container of the service remembers, on its read-only disk."""
    program = "from cloud import choices; "
    for step in ("choices.remember('key', {'engine': 'openvino'})", "print(choices.recall('key')['engine'])"):
        worker = start("cloud", entrypoint=["python", "-c", program + step], command=[])
        assert worker.wait(timeout=READY_S)["StatusCode"] == 0, worker.logs().decode()
    assert worker.logs().decode().strip() == "openvino"


@pytest.fixture(scope="module")
def secured(start: Callable[..., Container], served_model: Path) -> Mapping[str, Container]:
    """The profile `secured`: broker and cloud node with certificates that it made itself, healthy."""
    assert served_model
    certs = start("certs")
    assert certs.wait(timeout=READY_S)["StatusCode"] == 0, certs.logs().decode()
    broker = start("secured-broker")
    await_healthy("secured-broker", broker)
    cloud = start("secured-cloud")
    await_healthy("secured-cloud", cloud)
    return {"broker": broker, "cloud": cloud}


def test_the_secured_services_answer_every_frame(
    start: Callable[..., Container],
    secured: Mapping[str, Container],
) -> None:
    """By certificates alone: made, handed out, and read by the users that need them."""
    assert secured
    drive = start("drive", entrypoint=["skylane", "bag", "make", "/runs/locked", "--frames", str(FRAMES)])
    assert drive.wait(timeout=READY_S)["StatusCode"] == 0, drive.logs().decode()
    command = [word.replace("/runs/drive", "/runs/locked") for word in SERVICES["secured-edge"]["command"]]
    edge = start("secured-edge", command=[*command, "--closed-loop", "--out", "/runs/secured"])
    assert edge.wait(timeout=READY_S)["StatusCode"] == 0, edge.logs().decode()
    assert [row["outcome"] for row in read_log(edge, "/runs/secured")] == ["answered"] * FRAMES


def test_a_secured_service_holds_its_own_files_alone(
    start: Callable[..., Container], secured: Mapping[str, Container]
) -> None:
    """Whoever takes over the vehicle must not find the worker's key, and nobody finds the authority's."""
    edge = start("secured-edge", entrypoint=["sleep", "3600"], command=[])
    held = [
        (secured["broker"], "/mosquitto/certs", ["ca.crt", "crl.pem", "server.crt", "server.key"]),
        (secured["broker"], "/mosquitto/config", ["acl", "mosquitto.conf"]),
        (secured["cloud"], "/certs", ["ca.crt", "worker.crt", "worker.key"]),
        (edge, "/certs", ["ca.crt", "vehicle.crt", "vehicle.key"]),
    ]
    for container, folder, files in held:
        code, said = run_in(container, ["ls", folder])
        assert (code, sorted(said.split())) == (0, files)
        uid = run_in(container, ["id", "-u"])[1].strip()
        paths = [f"{folder}/{file}" for file in files]
        assert run_in(container, ["stat", "-c", "%u:%a", *paths]) == (0, f"{uid}:400\n" * len(files))
        assert run_in(container, ["cat", *paths])[0] == 0


def test_certificates_of_a_folder_that_only_its_owner_can_read_serve_too(
    start: Callable[..., Container], tmp_path: Path
) -> None:
    """SKYLANE_CERTS_FOLDER: made on this machine by any user, such as root; what is there is kept."""
    authority = CertificateAuthority(tmp_path / "certs")
    authority.broker(["secured-broker", "localhost"], 1)
    for role, name in ((Role.WORKER, "worker"), (Role.VEHICLE, "vehicle")):
        authority.node(role, name, 1)
    made = {file.name: file.read_bytes() for file in authority.folder.glob("*.key")}
    folders = [mount for mount in SERVICES["certs"]["volumes"] if not mount.startswith("authority:")]
    volumes = [f"{authority.folder}:/authority", *folders]
    certs = start("certs", volumes=volumes)
    assert certs.wait(timeout=READY_S)["StatusCode"] == 0, certs.logs().decode()
    compare = "cd /authority && cmp server.key /volumes/broker-certs/server.key && stat -c %u /volumes/broker-certs/*"
    looks = start("certs", volumes=volumes, command=[compare])
    assert looks.wait(timeout=READY_S)["StatusCode"] == 0, looks.logs().decode()
    assert {*looks.logs().decode().split()} == {"1883"}
    assert {file.name: file.read_bytes() for file in authority.folder.glob("*.key")} == made


def test_a_worker_drains_when_it_is_told_to_stop(
    start: Callable[..., Container],
    stack: Mapping[str, Container],
) -> None:
    """`docker stop` sends SIGTERM; after its grace comes SIGKILL, and frames in flight are lost."""
    drive = start("drive", entrypoint=["skylane", "bag", "make", "/runs/second", "--frames", str(FRAMES)])
    assert drive.wait(timeout=READY_S)["StatusCode"] == 0, drive.logs().decode()
    command = ["cloud", "serve", "--models", "/models", "--model", "road-small", "--worker", "leaving"]
    worker = start("cloud", command=[*command, "--health-file", "/tmp/skylane.health"])
    await_healthy("cloud", worker)
    play = ["edge", "play", "/runs/second", "--closed-loop", "--loop", "--frames", str(DRAINING_FRAMES), "--no-sinks"]
    edge = start("edge", command=[*play, "--vehicle", "second", "--out", "/runs/drained"])
    await_rows(edge, "/runs/drained/latency.csv", ",leaving,")
    worker.stop(timeout=60)
    assert worker.wait()["StatusCode"] == 0
    assert "] stopped " in worker.logs().decode()
    assert edge.wait(timeout=READY_S)["StatusCode"] == 0, edge.logs().decode()
    rows = read_log(edge, "/runs/drained")
    assert [row["outcome"] for row in rows] == ["answered"] * DRAINING_FRAMES
    assert {host_of(row) or row["worker"] for row in rows} == {host_name(stack["cloud"]), "leaving"}
    assert {row["attempts"] for row in rows} == {"1"}

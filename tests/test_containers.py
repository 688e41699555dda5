"""The images, built and brought up by the engine that answers, as docker-compose.yml says."""

import csv
import gc
import io
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml
from docker.errors import DockerException, ImageNotFound
from docker.models.containers import Container

from tests.ci_script import ci_script

ROOT = Path(__file__).parents[1]
SERVICES: Mapping[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
BASES = ("python:3.11-slim-bookworm", SERVICES["broker"]["image"])
FRAMES = 6
DRAINING_FRAMES = 120  # Enough that a worker is asked to end in the middle of them.
KILLED = 128 + 9
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
    """The tags of both images, built as the compose file says."""
    tags = {}
    for name in ("edge", "cloud"):
        tags[name] = f"{SERVICES[name]['image']}:test"
        engine.images.build(path=str(ROOT), dockerfile=SERVICES[name]["build"]["dockerfile"], tag=tags[name], rm=True)
    return tags


@pytest.fixture(scope="module")
def start(engine: docker.DockerClient, images: Mapping[str, str]) -> Iterator[Callable[..., Container]]:
    """Starts a service of the compose file, in a network and with a volume for runs of this test's own."""
    mark = f"skylane-test-{uuid.uuid4().hex[:8]}"
    network = engine.networks.create(mark, driver="bridge")
    volume = engine.volumes.create(mark)
    containers: list[Container] = []

    def start_service(name: str, **changes: Any) -> Container:
        service = {**SERVICES[name], **changes}
        mounts = [mount.split(":") for mount in service["volumes"]]
        container = engine.containers.create(
            images.get(name, images["edge"] if name == "drive" else service["image"]),
            command=service.get("command"),
            entrypoint=service.get("entrypoint"),
            environment=service.get("environment", {}),
            user=service.get("user"),
            read_only=service["read_only"],
            cap_drop=service["cap_drop"],
            security_opt=service["security_opt"],
            tmpfs=dict.fromkeys(service["tmpfs"], ""),
            mem_limit=service["mem_limit"],
            pids_limit=service["pids_limit"],
            init=service["init"],
            network=mark,
            networking_config={mark: engine.api.create_endpoint_config(aliases=[name])},
            volumes=[
                ":".join([mark if source == "runs" else str((ROOT / source).resolve()), *rest])
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
        volume.remove(force=True)


def run_in(container: Container, command: list[str]) -> tuple[int, str]:
    """Run a command in a running container; its exit code and what it said."""
    code, said = container.exec_run(command)
    assert isinstance(said, bytes)
    return code or 0, said.decode()


def await_healthy(name: str, container: Container) -> None:
    """Run the service's own health check until it passes: engines without systemd do not run it by themselves."""
    check = [word.replace("$$", "$") for word in SERVICES[name]["healthcheck"]["test"][1:]]
    deadline = time.monotonic() + READY_S
    while True:
        container.reload()
        assert container.status == "running", container.logs().decode()
        code, said = run_in(container, check)  # It waits by itself for what is not there yet.
        if code == 0:
            return
        assert time.monotonic() < deadline, f"{name} is not healthy: {said}\n{container.logs().decode()}"


def read_log(engine: docker.DockerClient, images: Mapping[str, str], edge: Container, run: str) -> list[dict[str, str]]:
    """The rows of a run in the volume of a vehicle that has ended."""
    volume = next(mount["Name"] for mount in edge.attrs["Mounts"] if mount["Destination"] == "/runs")
    log = engine.containers.run(
        images["edge"],
        [f"{run}/latency.csv"],
        entrypoint="cat",
        volumes=[f"{volume}:/runs:ro"],
        remove=True,
        network_mode="none",
    )
    return list(csv.DictReader(io.StringIO(log.decode())))


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
    cloud = start("cloud", volumes=[f"{served_model}:/models:ro"])
    await_healthy("cloud", cloud)
    return {"broker": broker, "cloud": cloud}


@pytest.mark.parametrize("room", ["edge", "cloud"])
def test_an_image_knows_its_own_commands(engine: docker.DockerClient, images: Mapping[str, str], room: str) -> None:
    """What is missing in an image shows at its first import, long before a broker is needed."""
    said = engine.containers.run(images[room], [room, "--help"], remove=True, network_mode="none")
    assert f"skylane {room} " in said.decode()


def test_a_vehicle_image_holds_no_tensorflow(engine: docker.DockerClient, images: Mapping[str, str]) -> None:
    """A vehicle downloads its image over the air."""
    command = ["-c", "import importlib.util as u; print(u.find_spec('tensorflow'), u.find_spec('pip'))"]
    said = engine.containers.run(
        images["edge"], command, entrypoint="python", remove=True, network_mode="none", stdout=True
    )
    assert said.decode().split() == ["None", "None"]


@pytest.mark.parametrize("room", ["edge", "cloud"])
def test_a_bill_of_materials_lists_what_the_image_holds(
    engine: docker.DockerClient, images: Mapping[str, str], room: str
) -> None:
    """It is made from the lock: whoever looks an advisory up in it must not miss a library that is there."""
    command = ["-c", "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"]
    said = engine.containers.run(images[room], command, entrypoint="python", remove=True, network_mode="none")
    held = {normalised(library) for library in said.decode().split() if not library.startswith("skylane==")}
    sbom = ci_script("sbom")
    image = next(image for image in sbom.IMAGES if image.name == f"skylane-{room}")
    assert held == {normalised(block.split()[0]) for block in sbom.requirements(image)}


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
    for container, mine in ((vehicle, {*MINE}), (stack["cloud"], {"/tmp"})):
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
    engine: docker.DockerClient,
    images: Mapping[str, str],
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
    assert [row["outcome"] for row in read_log(engine, images, edge, "/runs/test")] == ["answered"] * FRAMES


def test_a_worker_drains_when_it_is_told_to_stop(
    engine: docker.DockerClient,
    images: Mapping[str, str],
    start: Callable[..., Container],
    served_model: Path,
    stack: Mapping[str, Container],
) -> None:
    """`docker stop` sends SIGTERM; after its grace comes SIGKILL, and frames in flight are lost."""
    assert stack
    drive = start("drive", entrypoint=["skylane", "bag", "make", "/runs/second", "--frames", str(FRAMES)])
    assert drive.wait(timeout=READY_S)["StatusCode"] == 0, drive.logs().decode()
    command = ["cloud", "serve", "--models", "/models", "--model", "road-small", "--worker", "leaving"]
    worker = start("cloud", command=command, volumes=[f"{served_model}:/models:ro"])
    check = ["skylane", "health", "--timeout", "60", "worker", "leaving"]
    assert run_in(worker, check)[0] == 0, worker.logs().decode()
    play = ["edge", "play", "/runs/second", "--closed-loop", "--loop", "--frames", str(DRAINING_FRAMES), "--no-sinks"]
    edge = start("edge", command=[*play, "--vehicle", "second", "--out", "/runs/drained"])
    await_rows(edge, "/runs/drained/latency.csv", ",leaving,")
    worker.stop(timeout=60)
    assert worker.wait()["StatusCode"] == 0
    assert "] stopped " in worker.logs().decode()
    assert edge.wait(timeout=READY_S)["StatusCode"] == 0, edge.logs().decode()
    rows = read_log(engine, images, edge, "/runs/drained")
    assert [row["outcome"] for row in rows] == ["answered"] * DRAINING_FRAMES
    assert {row["worker"] for row in rows} == {"cloud", "leaving"}
    assert {row["attempts"] for row in rows} == {"1"}

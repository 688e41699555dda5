"""The container images, built and run by the available container engine according to docker-compose.yml."""

import gc
import re
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import DockerException, ImageNotFound
from docker.models.containers import Container

from ops.broker.certificate_authority import CertificateAuthority, Role
from tests.ci_script import ci_script
from tests.compose_file import COMPOSE, ROOT, SERVICES
from tests.support.containers import (
    FRAMES,
    await_healthy,
    await_rows,
    await_success,
    check_health,
    connect_to_engine,
    host_name,
    host_of,
    read_log,
    render_drive,
    run_in,
)

BASES = ("python:3.11-slim-bookworm", SERVICES["broker"]["image"])
DRAINING_FRAMES = 120  # Enough that a worker is stopped in the middle.
SHARED_FRAMES = 40  # Enough that each of two workers gets some.
WRITABLE = "/runs", "/tmp"
# Folders that engines make writable in every container; they are private and temporary.
ENGINE_FOLDERS = "/dev/mqueue", "/dev/shm", "/run", "/var/tmp"


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    """The Docker or Podman engine at DOCKER_HOST or the default socket."""
    client = connect_to_engine()
    if client is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # The SDK leaves its socket open.
            gc.collect()
        pytest.skip("no container engine: start Docker, or set DOCKER_HOST")
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
    """Builds both images; returns their tags by their names in the compose file."""
    tags = {}
    for name in ("edge", "cloud"):
        image = SERVICES[name]["image"]
        tags[image] = f"{image}:test"
        dockerfile = SERVICES[name]["build"]["dockerfile"]
        engine.images.build(path=str(ROOT), dockerfile=dockerfile, tag=tags[image], rm=True)
    return tags


@pytest.fixture(scope="module")
def start(engine: docker.DockerClient, images: Mapping[str, str]) -> Iterator[Callable[..., Container]]:
    """Starts services of the compose file, with a network and volumes for this module."""
    prefix = f"skylane-test-{uuid.uuid4().hex[:8]}"
    network = engine.networks.create(prefix, driver="bridge")
    volumes = {name: engine.volumes.create(f"{prefix}-{name}") for name in COMPOSE["volumes"]}
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
            network=prefix if is_reachable else None,
            network_mode=None if is_reachable else "none",
            networking_config={prefix: engine.api.create_endpoint_config(aliases=[name])} if is_reachable else None,
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


@pytest.fixture(scope="module")
def served_model() -> Path:
    """The worker's model repository, which is the models folder of this checkout."""
    models = ROOT / "models"
    if not (models / "road-small" / "model.yaml").is_file():
        pytest.skip("models/road-small is not built: skylane model build road-small")
    return models


@pytest.fixture(scope="module")
def stack(start: Callable[..., Container], served_model: Path) -> Mapping[str, Container]:
    """The healthy broker and worker."""
    broker = start("broker")
    await_healthy("broker", broker)
    assert served_model
    cloud = start("cloud")
    await_healthy("cloud", cloud)
    return {"broker": broker, "cloud": cloud}


@pytest.mark.parametrize("node", ["edge", "cloud"])
def test_an_image_can_run_its_command(engine: docker.DockerClient, images: Mapping[str, str], node: str) -> None:
    """A missing library shows at import, without a broker."""
    image = images[f"skylane-{node}"]
    output = engine.containers.run(image, [node, "--help"], remove=True, network_mode="none")
    assert f"skylane {node} " in output.decode()


def test_the_vehicle_image_has_no_tensorflow(engine: docker.DockerClient, images: Mapping[str, str]) -> None:
    """Vehicles download their image over the air."""
    command = ["-c", "import importlib.util as u; print(u.find_spec('tensorflow'), u.find_spec('pip'))"]
    output = engine.containers.run(
        images["skylane-edge"], command, entrypoint="python", remove=True, network_mode="none", stdout=True
    )
    assert output.decode().split() == ["None", "None"]


@pytest.mark.parametrize("node", ["edge", "cloud"])
def test_a_bill_of_materials_lists_the_libraries_of_the_image(
    engine: docker.DockerClient, images: Mapping[str, str], node: str
) -> None:
    """It is generated from the lock file and must not lack an installed library."""
    command = ["-c", "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"]
    image = images[f"skylane-{node}"]
    output = engine.containers.run(image, command, entrypoint="python", remove=True, network_mode="none")
    installed = {normalised(library) for library in output.decode().split() if not library.startswith("skylane==")}
    sbom = ci_script("sbom")
    listed = next(image for image in sbom.IMAGES if image.name == f"skylane-{node}")
    assert installed == {normalised(block.split()[0]) for block in sbom.requirements(listed)}


def normalised(library: str) -> str:
    """Returns a library's name, normalised by PEP 503, and version."""
    name, version = library.split("==")
    return f"{re.sub('[-_.]+', '-', name).lower()}=={version}"


@pytest.fixture(scope="module")
def vehicle(start: Callable[..., Container]) -> Container:
    """An idle vehicle container, in which commands can be run."""
    return start("edge", entrypoint=["sleep", "3600"], command=[])


def test_no_service_has_or_can_gain_root_rights(stack: Mapping[str, Container], vehicle: Container) -> None:
    """An exploit of a decoder must not gain privileges."""
    for container in (*stack.values(), vehicle):
        code, output = run_in(container, ["cat", "/proc/1/status"])
        status = dict(line.split(":\t", 1) for line in output.splitlines() if ":\t" in line)
        assert code == 0
        assert "0" not in (*status["Uid"].split(), *status["Gid"].split())
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert status["NoNewPrivs"] == "1"


def test_a_node_can_write_only_its_results(stack: Mapping[str, Container], vehicle: Container) -> None:
    """An intruder must not be able to change a node."""
    for container, writable in ((vehicle, {*WRITABLE}), (stack["cloud"], {"/tmp", "/cache"})):
        find = "find / ( -path /proc -o -path /sys ) -prune -o -type d -writable -print -prune"
        found = run_in(container, find.split())[1].splitlines()
        written = {line for line in found if line.startswith("/")}  # `find` also reports unreadable folders.
        assert writable <= written <= {*writable, *ENGINE_FOLDERS}
        for folder in ("/", "/opt/skylane", "/etc"):
            code, output = run_in(container, ["touch", f"{folder}/test"])
            assert code != 0
            assert "Read-only file system" in output
    for folder in WRITABLE:
        assert run_in(vehicle, ["touch", f"{folder}/test"]) == (0, "")


def test_every_frame_is_answered(
    start: Callable[..., Container],
    stack: Mapping[str, Container],
) -> None:
    """Frames are rendered, sent and answered between containers; the volume has one row per frame."""
    assert stack
    render_drive(start, "/runs/drive")
    play = ["edge", "play", "/runs/drive", "--closed-loop", "--out", "/runs/test"]
    edge = start("edge", command=play)
    await_success(edge)
    assert [row["outcome"] for row in read_log(edge, "/runs/test")] == ["answered"] * FRAMES


def test_a_scaled_service_shares_the_frames(
    start: Callable[..., Container],
    stack: Mapping[str, Container],
) -> None:
    """With `docker compose up --scale cloud=2`, no fixed name or port prevents the second worker from starting."""
    second = start("cloud")
    await_healthy("cloud", second)
    render_drive(start, "/runs/shared")
    play = ["edge", "play", "/runs/shared", "--closed-loop", "--loop", "--frames", str(SHARED_FRAMES), "--no-sinks"]
    edge = start("edge", command=[*play, "--vehicle", "sharing", "--out", "/runs/sharing"])
    await_success(edge)
    rows = read_log(edge, "/runs/sharing")
    second.stop(timeout=60)
    assert [row["outcome"] for row in rows] == ["answered"] * SHARED_FRAMES
    assert {host_of(row) for row in rows} == {host_name(stack["cloud"]), host_name(second)}


def test_health_checks_do_not_appear_in_the_brokers_log(stack: Mapping[str, Container]) -> None:
    """Otherwise 54 lines a minute would hide the events of nodes."""
    before = stack["broker"].logs()
    for name in ("broker", "cloud"):
        assert check_health(name, stack[name]) == (0, "")
    assert stack["broker"].logs() == before


def test_health_checks_fail_without_their_service(vehicle: Container) -> None:
    """They fail in a container that runs neither broker nor node."""
    for name in ("broker", "secured-broker", "edge"):
        assert check_health(name, vehicle)[0] != 0


def test_the_selected_engine_is_kept_for_the_next_container(start: Callable[..., Container]) -> None:
    """`--engine auto` measures for a minute; the result is in a volume, as the container is read-only."""
    program = "from cloud.models.engine_selection import Measurement, store_measurement, stored_measurement; "
    measured = "Measurement('openvino', 2.0, 1.0, (), '2026-11-21')"
    for step in (f"store_measurement('key', {measured})", "print(stored_measurement('key').chosen)"):
        worker = start("cloud", entrypoint=["python", "-c", program + step], command=[])
        await_success(worker)
    assert worker.logs().decode().strip() == "openvino"


@pytest.fixture(scope="module")
def secured(start: Callable[..., Container], served_model: Path) -> Mapping[str, Container]:
    """The healthy broker and worker of the profile `secured`, with generated certificates."""
    assert served_model
    certs = start("certs")
    await_success(certs)
    broker = start("secured-broker")
    await_healthy("secured-broker", broker)
    cloud = start("secured-cloud")
    await_healthy("secured-cloud", cloud)
    return {"broker": broker, "cloud": cloud}


def test_the_secured_services_answer_every_frame(
    start: Callable[..., Container],
    secured: Mapping[str, Container],
) -> None:
    """The certificates are generated, distributed and readable by their users."""
    assert secured
    render_drive(start, "/runs/locked")
    command = [word.replace("/runs/drive", "/runs/locked") for word in SERVICES["secured-edge"]["command"]]
    edge = start("secured-edge", command=[*command, "--closed-loop", "--out", "/runs/secured"])
    await_success(edge)
    assert [row["outcome"] for row in read_log(edge, "/runs/secured")] == ["answered"] * FRAMES


def test_a_secured_service_has_only_its_own_files(
    start: Callable[..., Container], secured: Mapping[str, Container]
) -> None:
    """A compromised vehicle has no access to the keys of the worker and the authority."""
    edge = start("secured-edge", entrypoint=["sleep", "3600"], command=[])
    expected = [
        (secured["broker"], "/mosquitto/certs", ["ca.crt", "crl.pem", "server.crt", "server.key"]),
        (secured["broker"], "/mosquitto/config", ["acl", "mosquitto.conf"]),
        (secured["cloud"], "/certs", ["ca.crt", "worker.crt", "worker.key"]),
        (edge, "/certs", ["ca.crt", "vehicle.crt", "vehicle.key"]),
    ]
    for container, folder, files in expected:
        code, output = run_in(container, ["ls", folder])
        assert (code, sorted(output.split())) == (0, files)
        uid = run_in(container, ["id", "-u"])[1].strip()
        paths = [f"{folder}/{file}" for file in files]
        assert run_in(container, ["stat", "-c", "%u:%a", *paths]) == (0, f"{uid}:400\n" * len(files))
        assert run_in(container, ["cat", *paths])[0] == 0


def test_existing_certificates_of_another_user_can_be_used(start: Callable[..., Container], tmp_path: Path) -> None:
    """SKYLANE_CERTS_FOLDER may be readable only by its owner, such as root. Existing files are kept."""
    authority = CertificateAuthority(tmp_path / "certs")
    authority.broker(["secured-broker", "localhost"], 1)
    for role, name in ((Role.WORKER, "worker"), (Role.VEHICLE, "vehicle")):
        authority.node(role, name, 1)
    keys = {file.name: file.read_bytes() for file in authority.folder.glob("*.key")}
    folders = [mount for mount in SERVICES["certs"]["volumes"] if not mount.startswith("authority:")]
    volumes = [f"{authority.folder}:/authority", *folders]
    certs = start("certs", volumes=volumes)
    await_success(certs)
    compare = "cd /authority && cmp server.key /volumes/broker-certs/server.key && stat -c %u /volumes/broker-certs/*"
    checker = start("certs", volumes=volumes, command=[compare])
    await_success(checker)
    assert {*checker.logs().decode().split()} == {"1883"}
    assert {file.name: file.read_bytes() for file in authority.folder.glob("*.key")} == keys


def test_a_stopped_worker_drains(
    start: Callable[..., Container],
    stack: Mapping[str, Container],
) -> None:
    """`docker stop` sends SIGTERM, and SIGKILL after the grace period, which would lose frames in flight."""
    render_drive(start, "/runs/second")
    command = ["cloud", "serve", "--models", "/models", "--model", "road-small", "--worker", "leaving"]
    worker = start("cloud", command=[*command, "--health-file", "/tmp/skylane.health"])
    await_healthy("cloud", worker)
    play = ["edge", "play", "/runs/second", "--closed-loop", "--loop", "--frames", str(DRAINING_FRAMES), "--no-sinks"]
    edge = start("edge", command=[*play, "--vehicle", "second", "--out", "/runs/drained"])
    await_rows(edge, "/runs/drained/latency.csv", ",leaving,")
    worker.stop(timeout=60)
    assert worker.wait()["StatusCode"] == 0
    assert "] stopped " in worker.logs().decode()
    await_success(edge)
    rows = read_log(edge, "/runs/drained")
    assert [row["outcome"] for row in rows] == ["answered"] * DRAINING_FRAMES
    assert {host_of(row) or row["worker"] for row in rows} == {host_name(stack["cloud"]), "leaving"}
    assert {row["attempts"] for row in rows} == {"1"}

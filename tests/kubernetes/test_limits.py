"""Pods have the limits and the hardening of docker-compose.yml, and the resources of docs/guides/sizing.md."""

import re
from typing import Any

import pytest

import cloud.cli
from tests.compose_file import SERVICES
from tests.kubernetes.rendering import (
    FOLDER,
    OVERLAYS,
    ROOT,
    SECURED,
    container_of,
    containers,
    flags_of,
    kinds,
    named,
    needs_kubectl,
    pod_of,
    probes_of,
    quantity,
    shell_of,
)
from tests.test_commands import COMMANDS

pytestmark = needs_kubectl
COMPOSE_WORKERS = {"development": "gateway", "gpu": "cloud-gpu"}  # Of the other overlays: `secured-cloud`.
GUIDE = ROOT / "docs" / "guides" / "kubernetes.md"
USERS = {"broker": 1883, "worker": 10001}


def compose_service(overlay: str, deployment: str) -> Any:
    """Returns the service of docker-compose.yml to which a Deployment corresponds."""
    if deployment == "broker":
        return SERVICES["broker" if overlay == "development" else "secured-broker"]
    return SERVICES[COMPOSE_WORKERS.get(overlay, "secured-cloud")]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_container_is_hardened(overlay: str) -> None:
    """Frames are untrusted input; an exploit must stay in its container. A namespace of level `restricted` checks it."""
    for pod, container in containers(overlay):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "hostPath" not in str(pod["volumes"])
    for account in kinds(overlay, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    labels = named(overlay, "Namespace", "skylane")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("deployment", ["broker", "worker"])
def test_pods_have_the_user_the_memory_and_the_image_of_compose(overlay: str, deployment: str) -> None:
    """Both ways to run the containers have the same limits."""
    service, user = compose_service(overlay, deployment), USERS[deployment]
    container = container_of(overlay, deployment)
    context = pod_of(overlay, deployment)["spec"]["securityContext"]
    assert [context[key] for key in ("runAsUser", "runAsGroup", "fsGroup")] == [user] * 3
    assert quantity(container["resources"]["limits"]["memory"]) == quantity(service["mem_limit"].upper() + "i")
    assert container["image"].partition(":")[0] == service["image"].partition(":")[0]


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("deployment", ["broker", "worker"])
def test_pods_are_ready_when_compose_calls_them_healthy(overlay: str, deployment: str) -> None:
    """The same shell command, which starts no Python process and does not appear in the broker's log."""
    (test, command) = compose_service(overlay, deployment)["healthcheck"]["test"]
    probes = probes_of(container_of(overlay, deployment))
    assert probes.keys() == {"startupProbe", "readinessProbe", "livenessProbe"}
    assert test == "CMD-SHELL"
    assert shell_of(probes["startupProbe"]) == shell_of(probes["readinessProbe"]) == command


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_lost_broker_restarts_no_worker(overlay: str) -> None:
    """The health file depends on the broker, so the liveness probe of a worker must not read it."""
    container = container_of(overlay, "worker")
    (health_file,) = flags_of(container)["--health-file"]
    probes = probes_of(container)
    assert health_file in shell_of(probes["readinessProbe"])
    assert health_file not in str(probes["livenessProbe"])
    assert probes["livenessProbe"]["httpGet"].get("scheme", "HTTP") == ("HTTPS" if overlay in SECURED else "HTTP")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_worker_may_take_its_time_to_start(overlay: str) -> None:
    """The kubelet must not kill a worker that still waits for the broker or loads a model."""
    container = container_of(overlay, "worker")
    probe = container["startupProbe"]
    (wait_s,) = flags_of(container)["--connect-timeout"]
    compose_s = float(compose_service(overlay, "worker")["healthcheck"]["start_period"].removesuffix("s"))
    assert probe["periodSeconds"] * probe["failureThreshold"] > float(wait_s) + compose_s


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_flags_of_a_worker_exist(overlay: str) -> None:
    """Every flag is one of `skylane cloud serve`, and every path is a volume or a file of a mounted Secret."""
    container = container_of(overlay, "worker")
    assert container["args"][:2] == ["cloud", "serve"]
    known = {name for parameter in cloud.cli.cloud.commands["serve"].params for name in parameter.opts}
    assert flags_of(container).keys() <= known
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    for values in flags_of(container).values():
        for value in values:
            if value.startswith("/"):
                assert any(value == mount or value.startswith(f"{mount}/") for mount in mounts), value
    assert flags_of(container)["--worker"] == ["<POD_NAME>"]
    secured = {"--tls-ca", "--tls-cert", "--tls-key", "--tokens", "--gateway-tls-cert", "--gateway-tls-key"}
    assert (secured <= flags_of(container).keys()) is (overlay in SECURED)
    assert ("--device" in flags_of(container)) is (overlay == "gpu")


@pytest.mark.parametrize("overlay", SECURED)
def test_secrets_are_files_and_never_variables(overlay: str) -> None:
    """Variables are inherited by child processes and appear in crash reports."""
    for _, container in containers(overlay):
        assert not [each for each in container.get("env", ()) if "secretKeyRef" in str(each)]
        assert "envFrom" not in container
    for pod, _ in containers(overlay):
        secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert secrets
        assert all(each["defaultMode"] == 0o440 for each in secrets)


def test_a_gpu_worker_has_a_whole_gpu_for_itself() -> None:
    """GPUs are no resource that pods share; the worker's device is the only one that its container has."""
    container = container_of("gpu", "worker")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert flags_of(container)["--device"] == ["gpu:0"]
    assert named("gpu", "Deployment", "worker")["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 0,
        "maxUnavailable": 1,
    }


def test_the_requests_are_the_figures_of_the_sizing_guide() -> None:
    """A pod needs what was measured for `road-small`; the limit is four times that, as in docker-compose.yml."""
    page = (ROOT / "docs" / "guides" / "sizing.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"The worker's memory peaked at ([\d,]+) MB, the broker's at (\d+) MB", page)
    worker_bytes, broker_bytes = (float(text.replace(",", "")) * 1e6 for text in found)
    (cores,) = {int(text) for text in re.findall(r"`road-small` on TensorFlow FP32, two .*? \((\d+) cores of an", page)}
    for deployment, peak_bytes in (("worker", worker_bytes), ("broker", broker_bytes)):
        resources = container_of("secured", deployment)["resources"]
        request, limit = (quantity(resources[key]["memory"]) for key in ("requests", "limits"))
        assert peak_bytes < request < limit
        assert limit > 3.9 * peak_bytes
    container = container_of("secured", "worker")
    assert quantity(container["resources"]["requests"]["cpu"]) == cores
    assert flags_of(container)["--model"] == ["road-small"]
    assert flags_of(container)["--threads"] == ["<THREADS>"]
    (threads,) = [each for each in container["env"] if each["name"] == "THREADS"]
    assert threads["valueFrom"] == {"resourceFieldRef": {"resource": "requests.cpu"}}


def test_the_development_overlay_serves_a_model_of_the_vehicle_image() -> None:
    """It needs no model repository: the vehicle's image contains the small models."""
    (model,) = flags_of(container_of("development", "worker"))["--model"]
    (source,) = pod_of("development", "worker")["spec"]["initContainers"]
    assert source["image"].startswith("skylane-edge:")
    assert f"!models/{model}" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "COPY models /models" in (ROOT / "edge" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert source["command"] == ["cp", "-r", "/models/.", "/repository"]


def test_the_pids_limit_is_explained_where_it_cannot_be_set() -> None:
    """Kubernetes limits the processes of a pod only for all pods of a node, in the kubelet's configuration."""
    limit = str(SERVICES["cloud"]["pids_limit"])
    comment = (FOLDER / "bases" / "worker" / "deployment.yaml").read_text(encoding="utf-8").partition("apiVersion")[0]
    assert limit in comment
    assert re.search(rf"podPidsLimit.{{0,200}}{limit}", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_commands_of_the_guide_exist() -> None:
    """`skylane health` and the other commands of the guide and of `create-secrets`, with their flags."""
    text = "".join(path.read_text(encoding="utf-8") for path in (GUIDE, FOLDER / "create-secrets"))
    found = re.findall(r"(?:^ {4}|^|`|')skylane ([a-z][^`'\n]*)", text, re.MULTILINE)
    used = {tuple(word for word in line.split() if word.isalpha())[:2]: line for line in found}
    assert {("health", "worker"), ("broker", "certs"), ("edge", "play")} <= used.keys()
    for words, line in used.items():
        command = COMMANDS.get(words) or COMMANDS[words[:1]]
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert {*re.findall(r"--[a-z-]+", line)} <= flags, line

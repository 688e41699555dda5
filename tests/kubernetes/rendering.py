"""The overlays of kubernetes/ as `kubectl kustomize` renders them, with every kubectl that is here."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "kubernetes"
OVERLAYS = ("development", "secured", "gpu", "autoscaling/hpa", "autoscaling/keda")
SECURED = tuple(overlay for overlay in OVERLAYS if overlay != "development")

Manifest = Mapping[str, Any]


def find(command: str) -> tuple[str, ...]:
    """Returns the paths of a command: Debian's, which `.ci/install-real-parts` unpacks, and the installed one."""
    unpacked = ROOT / "build" / "debian" / "usr" / "bin" / command
    found = [str(unpacked)] if unpacked.exists() else []
    return (*found, *filter(None, [shutil.which(command)]))


KUBECTLS = find("kubectl")
KUBECTL_MISSING = "kubectl is missing: .ci/install-real-parts unpacks Debian's kubernetes-client"
REQUIRED = os.environ.get("SKYLANE_REQUIRE_KUBECTL") == "1"  # Set by .ci/run, where a skip is a failure.
needs_kubectl = pytest.mark.skipif(not KUBECTLS and not REQUIRED, reason=KUBECTL_MISSING)


@cache
def render(overlay: str, kubectl: str | None = None) -> tuple[Manifest, ...]:
    """Returns the resources of an overlay, as rendered by a kubectl, by default by the first one."""
    if kubectl is None:
        assert KUBECTLS, KUBECTL_MISSING
        kubectl = KUBECTLS[0]
    command = [kubectl, "kustomize", str(FOLDER / "overlays" / overlay)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return tuple(yaml.safe_load_all(ended.stdout))


def kinds(overlay: str, *wanted: str) -> list[Manifest]:
    """Returns the resources of some kinds."""
    return [resource for resource in render(overlay) if resource["kind"] in wanted]


def named(overlay: str, kind: str, name: str) -> Manifest:
    """Returns the one resource of a kind with a name; a generated name matches without its hash."""
    (found,) = [each for each in kinds(overlay, kind) if name in (each["metadata"]["name"], base_name(each))]
    return found


def base_name(resource: Manifest) -> str:
    """Returns the name that a generator was given, without the hash of the content that Kustomize appends."""
    name: str = resource["metadata"]["name"]
    return name.rpartition("-")[0] if resource["kind"] == "ConfigMap" else name


def pod_of(overlay: str, deployment: str) -> Manifest:
    """Returns the pod template of a Deployment."""
    template: Manifest = named(overlay, "Deployment", deployment)["spec"]["template"]
    return template


def container_of(overlay: str, deployment: str) -> Manifest:
    """Returns the main container of a Deployment, which has the name of the Deployment."""
    (found,) = [each for each in pod_of(overlay, deployment)["spec"]["containers"] if each["name"] == deployment]
    return dict(found)


def containers(overlay: str) -> Iterator[tuple[Manifest, Manifest]]:
    """Yields all pairs of pod and container, init containers included."""
    for deployment in kinds(overlay, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield pod, container


def probes_of(container: Manifest) -> dict[str, Manifest]:
    """Returns the probes of a container, by their key."""
    return {key: container[key] for key in ("startupProbe", "readinessProbe", "livenessProbe") if key in container}


def shell_of(probe: Manifest) -> str:
    """Returns the shell command of a probe."""
    command = probe["exec"]["command"]
    assert command[:2] == ["sh", "-c"]
    text: str = command[2]
    return text


def flags_of(container: Manifest) -> dict[str, list[str]]:
    """Returns the values of the flags among a container's arguments, with the container's own variables replaced."""
    variables = {each["name"]: each.get("value", f"<{each['name']}>") for each in container.get("env", ())}
    found: dict[str, list[str]] = {}
    for word in container["args"]:
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            for name, content in variables.items():
                value = value.replace(f"$({name})", content)
            found.setdefault(flag, []).append(value)
    return found


def quantity(text: str) -> float:
    """Returns a quantity of Kubernetes as a number: bytes, or cores."""
    units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 1e3, "M": 1e6, "G": 1e9, "m": 1e-3}
    for unit, factor in units.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text)

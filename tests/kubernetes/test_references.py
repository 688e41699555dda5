"""The resources of an overlay belong together: selectors, ports, volumes, scale targets and the shipped files."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.rendering import (
    FOLDER,
    KUBECTLS,
    OVERLAYS,
    ROOT,
    SECURED,
    Manifest,
    base_name,
    container_of,
    containers,
    kinds,
    needs_kubectl,
    pod_of,
    probes_of,
    render,
)

pytestmark = needs_kubectl
CREATED = {"broker-certs", "worker-certs", "gateway"}  # The Secrets of kubernetes/create-secrets.


def matching(overlay: str, labels: Mapping[str, str]) -> list[Manifest]:
    """Returns the Deployments whose pods have these labels."""
    return [
        deployment
        for deployment in kinds(overlay, "Deployment")
        if labels.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    ]


def ports_of(deployment: Manifest) -> dict[str, int]:
    """Returns the ports of a Deployment's pods, by name."""
    pod = deployment["spec"]["template"]["spec"]
    return {port["name"]: port["containerPort"] for each in pod["containers"] for port in each.get("ports", ())}


def names(overlay: str, kind: str) -> set[str]:
    """Returns the names of all resources of a kind."""
    return {resource["metadata"]["name"] for resource in kinds(overlay, kind)}


def keys_named(value: Any, key: str) -> list[Any]:
    """Returns the values of a key at any depth."""
    if isinstance(value, list):
        return [found for each in value for found in keys_named(each, key)]
    if not isinstance(value, dict):
        return []
    here = [value[key]] if key in value else []
    return here + [found for each in value.values() for found in keys_named(each, key)]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_selector_matches_exactly_one_deployment(overlay: str) -> None:
    """A selector that matches nothing is no error for a cluster: a Service without an endpoint, a policy without a pod."""
    for deployment in kinds(overlay, "Deployment"):
        assert matching(overlay, deployment["spec"]["selector"]["matchLabels"]) == [deployment]
    for service in kinds(overlay, "Service"):
        assert len(matching(overlay, service["spec"]["selector"])) == 1
    for other in kinds(overlay, "PodDisruptionBudget", "PodMonitor"):
        assert len(matching(overlay, other["spec"]["selector"]["matchLabels"])) == 1
    for policy in kinds(overlay, "NetworkPolicy"):
        chosen = policy["spec"]["podSelector"].get("matchLabels")
        assert len(matching(overlay, chosen)) == 1 if chosen else policy["metadata"]["name"] == "default-deny"
    for labels in keys_named([pod_of(overlay, "worker")], "labelSelector"):
        assert len(matching(overlay, labels["matchLabels"])) == 1


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_port_is_one_of_the_container(overlay: str) -> None:
    """Services and probes name ports, policies number them."""
    for service in kinds(overlay, "Service"):
        (target,) = matching(overlay, service["spec"]["selector"])
        for port in service["spec"]["ports"]:
            assert ports_of(target)[port["targetPort"]] == port["port"]
    for _, container in containers(overlay):
        for probe in probes_of(container).values():
            if "httpGet" in probe:
                assert probe["httpGet"]["port"] in {port["name"] for port in container["ports"]}
    for policy in kinds(overlay, "NetworkPolicy"):
        if policy["spec"].get("ingress"):
            (target,) = matching(overlay, policy["spec"]["podSelector"]["matchLabels"])
            assert {*keys_named(policy["spec"]["ingress"], "port")} <= {*ports_of(target).values()}
    for monitor in kinds(overlay, "PodMonitor"):
        (target,) = matching(overlay, monitor["spec"]["selector"]["matchLabels"])
        assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} <= ports_of(target).keys()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_volume_exists_and_is_mounted(overlay: str) -> None:
    """A pod with a missing ConfigMap, Secret or volume never starts."""
    for deployment in kinds(overlay, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        mounted = {mount["name"] for _, each in containers(overlay) if _ is pod for mount in each["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        assert {each["name"] for each in keys_named(pod["volumes"], "configMap")} <= names(overlay, "ConfigMap")
        assert {each["secretName"] for each in keys_named(pod["volumes"], "secret")} <= CREATED
        assert pod["serviceAccountName"] in names(overlay, "ServiceAccount")
    for _, container in containers(overlay):
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(paths) == len({*paths})


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_resource_is_in_the_namespace_skylane(overlay: str) -> None:
    """The names of the gateway and of the Secrets contain it."""
    for resource in render(overlay):
        if resource["kind"] == "Namespace":
            assert resource["metadata"]["name"] == "skylane"
        else:
            assert resource["metadata"]["namespace"] == "skylane"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_broker_runs_the_files_of_this_repository(overlay: str) -> None:
    """The ConfigMap is made of the files in mosquitto/: there is no copy that could differ."""
    (config,) = [each for each in kinds(overlay, "ConfigMap") if base_name(each) == "broker-config"]
    assert config["data"].keys() == {"development.conf", "secured.conf", "acl"}
    for name, text in config["data"].items():
        assert text == (ROOT / "mosquitto" / name).read_text(encoding="utf-8")
    command = container_of(overlay, "broker")["command"]
    assert command[:2] == ["mosquitto", "-c"]
    used = command[2].removeprefix("/mosquitto/config/")
    assert used == ("development.conf" if overlay == "development" else "secured.conf")
    (listener,) = re.findall(r"^listener (\d+)$", config["data"][used], re.MULTILINE)
    assert [port["containerPort"] for port in container_of(overlay, "broker")["ports"]] == [int(listener)]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_workers_find_the_broker(overlay: str) -> None:
    """The address is the broker's Service; with certificates for all but the development overlay."""
    (address,) = [each["value"] for each in container_of(overlay, "worker")["env"] if each["name"] == "SKYLANE_BROKER"]
    (service,) = [each for each in kinds(overlay, "Service") if each["metadata"]["name"] == "broker"]
    scheme = "mqtt" if overlay == "development" else "mqtts"
    assert address == f"{scheme}://broker:{service['spec']['ports'][0]['port']}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_file_names_no_other_image_tags_than_these(overlay: str) -> None:
    """Images of Skylane have its version; `latest` would change under a running cluster."""
    (version,) = re.findall(r"^version = (\S+)$", (ROOT / "setup.cfg").read_text(encoding="utf-8"), re.MULTILINE)
    for _, container in containers(overlay):
        name, _, tag = container["image"].partition(":")
        assert tag == ("2" if name == "eclipse-mosquitto" else version), container["image"]
    assert f"skylane-models:{version} " in (ROOT / "kubernetes" / "models.Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("overlay", ["autoscaling/hpa", "autoscaling/keda"])
def test_autoscalers_scale_the_workers_and_nothing_else_sets_their_number(overlay: str) -> None:
    """A Deployment with `replicas` would lose the autoscaler's number at every `kubectl apply`."""
    (scaler,) = kinds(overlay, "HorizontalPodAutoscaler", "ScaledObject")
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["name"], target.get("kind", "Deployment")) == ("worker", "Deployment")
    (worker,) = [each for each in kinds(overlay, "Deployment") if each["metadata"]["name"] == "worker"]
    assert "replicas" not in worker["spec"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nobody_reaches_a_pod_that_no_policy_names(overlay: str) -> None:
    """Everything is denied first; then each policy allows one thing. Only workers send, and only to broker and DNS."""
    policies = {each["metadata"]["name"]: each["spec"] for each in kinds(overlay, "NetworkPolicy")}
    assert policies.pop("default-deny") == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    sends = {name for name, spec in policies.items() if "egress" in spec}
    assert sends == {"worker", "dns"}
    anybody = {name for name, spec in policies.items() for rule in spec.get("ingress", ()) if "from" not in rule}
    assert anybody == ({"vehicles"} if overlay in SECURED else set())
    for rule in policies["broker"]["ingress"] + policies["gateway"]["ingress"]:
        for peer in rule["from"]:
            assert peer["podSelector"]["matchLabels"], "a whole namespace may enter"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_the_secured_broker_is_reachable_from_outside(overlay: str) -> None:
    """The development broker accepts everyone, and the gateway has no limit on how often a stranger may try a token."""
    opened = {each["metadata"]["name"] for each in kinds(overlay, "Service") if "type" in each["spec"]}
    assert opened == ({"broker"} if overlay in SECURED else set())


def test_any_overlay_can_include_the_monitoring(tmp_path: Path) -> None:
    """As a component: with what `autoscaling/keda` has of it, in the namespace of the workers. Kustomize 2.0 knows none."""
    component = FOLDER / "components" / "monitoring"
    settings = yaml.safe_load((component / "kustomization.yaml").read_text(encoding="utf-8"))
    assert [(component / each).resolve() for each in settings["resources"]] == [FOLDER / "bases" / "monitoring"]
    parts = {"resources": FOLDER / "overlays" / "secured", "components": component}
    overlay = {key: [os.path.relpath(path, tmp_path)] for key, path in parts.items()}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    for kubectl in KUBECTLS:
        ended = subprocess.run([kubectl, "kustomize", tmp_path], capture_output=True, text=True, check=False)
        if 'unknown field "components"' in ended.stderr:
            continue
        resources = list(yaml.safe_load_all(ended.stdout))
        added = [each for each in resources if each not in render("secured", kubectl)]
        assert {each["kind"] for each in added} == {"NetworkPolicy", "PodMonitor"}
        assert len(added) == 2
        assert all(each in render("autoscaling/keda", kubectl) for each in added)

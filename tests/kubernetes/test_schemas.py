"""Every overlay renders with every kubectl, and the API server of the oldest and the newest cluster would accept it."""

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry
from referencing.jsonschema import DRAFT7

from tests.kubernetes.rendering import KUBECTLS, OVERLAYS, Manifest, needs_kubectl, render

VERSIONS = ("1.25", "1.37")  # The oldest and the newest Kubernetes of kubernetes-validate.
CUSTOM = Path(__file__).parent / "schemas"


def strict(schema: Any) -> Any:
    """Refuses unknown keys in a schema of a custom resource; Kubernetes drops them without an error."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **found} if isinstance(found.get("properties"), dict) else found


@cache
def validator(version: str, api: str, kind: str) -> Any:
    """Returns a validator of one kind of resource."""
    custom = CUSTOM / f"{kind.lower()}-{api.replace('/', '-')}.yaml"
    if custom.exists():
        return jsonschema.Draft7Validator(strict(yaml.safe_load(custom.read_text(encoding="utf-8"))))
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    group, _, number = api.rpartition("/")
    name = "-".join(filter(None, (kind.lower(), group.partition(".")[0], number)))
    documents = [json.loads((folder / file).read_text("utf-8")) for file in ("_definitions.json", f"{name}.json")]
    registry: Any = Registry().with_resource("_definitions.json", DRAFT7.create_resource(documents[0]))
    return jsonschema.Draft7Validator(documents[1], registry=registry)


def problems(version: str, resource: Manifest) -> list[str]:
    """Returns what a cluster of this version would refuse."""
    check = validator(version, resource["apiVersion"], resource["kind"])
    return [f"{resource['kind']} {error.json_path}: {error.message}" for error in check.iter_errors(resource)]


@needs_kubectl
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_resource_matches_its_schema(overlay: str, version: str) -> None:
    """A misspelt key would be dropped by the API server, and the limit that it sets with it."""
    resources = render(overlay)
    assert resources
    assert not [problem for resource in resources for problem in problems(version, resource)]


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_kubectl_renders_the_same(overlay: str) -> None:
    """Debian's kubectl contains Kustomize 2.0, newer ones Kustomize 5. Only the order and the hashes of names differ."""

    def comparable(kubectl: str) -> list[str]:
        """Returns the resources as sorted texts, their variables in order of their names."""
        found = []
        for resource in render(overlay, kubectl):
            text = json.dumps(resource, sort_keys=True)
            if resource["kind"] == "Deployment":
                copy = json.loads(text)
                for container in copy["spec"]["template"]["spec"]["containers"]:
                    container.get("env", []).sort(key=lambda each: each["name"])
                text = json.dumps(copy, sort_keys=True)
            found.append(text)
        (generated,) = [each for each in render(overlay, kubectl) if each["kind"] == "ConfigMap"]
        return sorted(text.replace(generated["metadata"]["name"], "generated") for text in found)

    first, *others = KUBECTLS
    assert all(comparable(other) == comparable(first) for other in others)

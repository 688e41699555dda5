"""Pods of an overlay as processes of this machine: their own commands, files and probes, at other paths and ports."""

import base64
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from ops.broker.broker import Broker
from tests.kubernetes.rendering import (
    FOLDER,
    KUBECTLS,
    Manifest,
    base_name,
    container_of,
    flags_of,
    kinds,
    pod_of,
    probes_of,
)
from tests.support.mqtt_bus import free_port

HOST = "127.0.0.1"
NAME = "worker-6d9f7c9b8-x2x7q"  # A name as Kubernetes gives it to a pod of the Deployment `worker`.
_WAIT_S, _POLL_S = 60.0, 0.05


@dataclass(frozen=True, slots=True)
class Pod:
    """A worker's container as a process, with the kubelet's view of it."""

    container: Manifest
    paths: Mapping[str, Path]  # Folders of this machine by mounted path.
    ports: Mapping[str, int]
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """The URL of the gateway."""
        scheme: str = probes_of(self.container)["livenessProbe"]["httpGet"].get("scheme", "HTTP")
        return f"{scheme.lower()}://{HOST}:{self.ports['http']}"

    def passes(self, probe: str) -> bool:
        """Runs a probe once, as the kubelet does: it does not verify certificates."""
        settings = probes_of(self.container)[probe]
        if "httpGet" in settings:
            url = f"{self.url}{settings['httpGet']['path']}"
            try:
                return httpx.get(url, verify=False, timeout=settings["timeoutSeconds"], trust_env=False).is_success
            except httpx.HTTPError:
                return False
        command = [move(word, self.paths) for word in settings["exec"]["command"]]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def is_online_at(self, broker: Broker) -> bool:
        """Asks the broker as the guide says, by `skylane health`, with the certificate of the worker if it has one."""
        command = [sys.executable, "-P", "-m", "skylane", "health", "worker", NAME]
        flags = {flag: move(value, self.paths) for flag, (value, *_) in flags_of(self.container).items()}
        for flag in ("--tls-ca", "--tls-cert", "--tls-key"):
            command += [flag, flags[flag]] if flag in flags else []
        environment = {**os.environ, "SKYLANE_BROKER": broker.url}
        return subprocess.run(command, capture_output=True, check=False, env=environment).returncode == 0

    def await_lines(self, event: str, count: int) -> None:
        """Waits until the worker has logged an event several times."""
        pause = threading.Event()
        for _ in range(round(_WAIT_S / _POLL_S)):
            if self.log.read_text().count(f"] {event} ") >= count:
                return
            pause.wait(_POLL_S)
        raise AssertionError(f"{event!r} was not logged {count} times: {self.log.read_text()}")

    def start(self) -> None:
        """Repeats the startup probe as often as the manifest allows."""
        settings = probes_of(self.container)["startupProbe"]
        pause = threading.Event()
        for _ in range(settings["failureThreshold"]):
            if self.passes("startupProbe"):
                return
            assert self.process.poll() is None, self.log.read_text()
            pause.wait(settings["periodSeconds"])
        raise AssertionError(f"the kubelet would have killed the worker: {self.log.read_text()}")


def move(text: str, paths: Mapping[str, Path]) -> str:
    """Replaces the mounted paths in a text."""
    mounts = "|".join(re.escape(mount) for mount in sorted(paths, key=len, reverse=True))
    return re.sub(rf"(?<![\w/.])({mounts})(?![\w.-])", lambda found: str(paths[found[1]]), text)


def mount(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Writes the files of a volume as the kubelet does, as links to a folder that it replaces as a whole."""
    content = folder / "..2026_11_26"
    content.mkdir(parents=True)
    (folder / "..data").symlink_to(content.name)
    for name, data in files.items():
        (content / name).write_bytes(data)
        (content / name).chmod(0o440)
        (folder / name).symlink_to(f"..data/{name}")
    return folder


def create_secrets(folder: Path) -> dict[str, dict[str, bytes]]:
    """Runs kubernetes/create-secrets and returns the files of its Secrets, by the names of both."""
    environment = {**os.environ, "PATH": os.pathsep.join(map(str, command_folders(folder / "bin")))}
    ended = subprocess.run(
        [FOLDER / "create-secrets", folder / "certs", HOST],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ended.returncode == 0, ended.stderr
    return {
        resource["metadata"]["name"]: {name: base64.b64decode(data) for name, data in resource["data"].items()}
        for resource in yaml.safe_load_all(ended.stdout)
        if resource["kind"] == "Secret"
    }


def command_folders(folder: Path) -> list[str]:
    """Returns a PATH with `skylane` of this checkout and the first kubectl."""
    folder.mkdir(exist_ok=True)
    command = folder / "skylane"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m skylane "$@"\n')
    command.chmod(0o755)
    return [str(folder), str(Path(KUBECTLS[0]).parent), os.environ["PATH"]]


@contextmanager
def broker_pod(overlay: str, folder: Path, secrets: Mapping[str, Mapping[str, bytes]]) -> Iterator[Broker]:
    """Runs Mosquitto with the ConfigMap of an overlay, after the init container has copied its files."""
    pod, container = pod_of(overlay, "broker")["spec"], container_of(overlay, "broker")
    (config,) = [each for each in kinds(overlay, "ConfigMap") if base_name(each) == "broker-config"]
    sources = {}
    for volume in pod["volumes"]:
        at = folder / volume["name"]
        if "configMap" in volume:
            sources[volume["name"]] = mount(at, {name: text.encode() for name, text in config["data"].items()})
        elif "secret" in volume:
            sources[volume["name"]] = mount(at, secrets[volume["secret"]["secretName"]])
        else:
            at.mkdir(parents=True)
            sources[volume["name"]] = at
    for each in pod.get("initContainers", ()):
        paths = {volume["mountPath"]: sources[volume["name"]] for volume in each["volumeMounts"]}
        subprocess.run([move(word, paths) for word in each["command"]], check=True)
    paths = {volume["mountPath"]: sources[volume["name"]] for volume in container["volumeMounts"]}
    used = Path(move(container["command"][2], paths))
    text = re.sub(
        r"^listener \d+$", f"listener {free_port()} {HOST}", move(used.read_text(), paths), flags=re.MULTILINE
    )
    file = folder / "mosquitto.conf"
    file.write_text(f"{text}\nuser root\n")
    with Broker.start(config=file) as broker:
        yield broker


@contextmanager
def worker_pod(
    overlay: str, folder: Path, models: Path, broker: Broker, secrets: Mapping[str, Mapping[str, bytes]]
) -> Iterator[Pod]:
    """Runs the container of a worker, with the only model of `models`; killed at the end of the block."""
    pod, container = pod_of(overlay, "worker")["spec"], container_of(overlay, "worker")
    paths, ports = {}, {port["name"]: free_port() for port in container["ports"]}
    for each in container["volumeMounts"]:
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == each["name"]]
        at = folder / "worker" / volume["name"]
        if "secret" in volume:
            mount(at, secrets[volume["secret"]["secretName"]])
        elif each["mountPath"] == "/models":
            at = models
        else:
            at.mkdir(parents=True)
        paths[each["mountPath"]] = at
    (model,) = [path.name for path in models.iterdir()]
    variables = {"POD_NAME": NAME, "THREADS": "1", "MODEL": model}
    assert {each["name"] for each in container["env"]} == {*variables, "SKYLANE_BROKER"}
    addresses = {f"0.0.0.0:{port['containerPort']}": f"{HOST}:{ports[port['name']]}" for port in container["ports"]}

    def argument(word: str) -> str:
        """Replaces variables, as Kubernetes does, the addresses of the ports, and the mounted paths."""
        word = re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word)
        flag, _, value = word.partition("=")
        return move(f"{flag}={addresses[value]}" if value in addresses else word, paths)

    command = [sys.executable, "-P", "-m", "skylane", *map(argument, container["args"])]
    log = folder / "worker.log"
    environment = {**os.environ, "SKYLANE_BROKER": broker.url, "SKYLANE_CACHE": str(paths["/cache"])}
    with log.open("wb") as file, subprocess.Popen(command, stderr=file, env=environment) as process:
        try:
            yield Pod(container, paths, ports, process, log)
        finally:
            process.kill()

"""Checks of this machine and its files: libraries, processor, GPU, disk, clock, models, ports and interrupted runs."""

import ctypes
import errno
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import psutil

from cloud.config import CloudConfig
from cloud.gateway.bind import PortTakenError
from cloud.preflight import check_gateway
from edge.config import EdgeConfig
from edge.transports.transport import TRANSPORTS
from ops.doctor.check import ERROR, OK, SKIPPED, WARNING, Check
from shared.errors import SkylaneError, UnknownNameError, install_command
from shared.inference.table import AUTO, ENGINES, choose_engine
from shared.models.repository import ModelFileError, Repository, default_root
from shared.network.endpoint import Endpoint
from shared.runlog.repair import killed_runs
from shared.runlog.run_folder import RUNS
from shared.runtime.machine import package_version, usable_cores

_LITTLE_BYTES = 1 << 30  # A long run may fill a disk with less free space.
_TRIAL_BYTES = 1 << 20  # Written to find quotas and read-only disks, which free space does not show.
_HASHING_S = 3.0  # Time limit for hashing the files of models.
_REQUIREMENT = re.compile(r'(?P<name>[A-Za-z0-9._-]+).*?; extra == "(?P<extra>\w+)"')


def libraries(config: EdgeConfig | CloudConfig) -> Iterator[Check]:
    """Checks that the libraries of the extras that a configuration needs are installed."""
    try:
        required = [requirement for line in requires("skylane") or () if (requirement := _REQUIREMENT.match(line))]
    except PackageNotFoundError:
        yield Check("libraries", SKIPPED, "Skylane is not installed as a package here")
        return
    missing: dict[str, list[str]] = {requirement["extra"]: [] for requirement in required}
    for requirement in required:
        if requirement["name"] != "skylane" and package_version(requirement["name"]) is None:
            missing[requirement["extra"]].append(requirement["name"])
    if isinstance(config, CloudConfig):
        engine = ENGINES[config.engine].extra if config.engine and config.engine in ENGINES else "cloud"
        needed = {engine: True, "gateway": bool(config.addresses)}
    else:
        over_rpc = TRANSPORTS[config.transport].needs_addresses
        needed = {"edge": True, "transports": over_rpc, "litert": bool(config.local_model), "view": bool(config.view)}
        needed["metrics"] = bool(config.metrics)
    for extra, is_needed in (needed | {"otel": bool(config.otel)}).items():
        if is_needed and extra not in missing:
            cause = "this installation is of an earlier version, without this extra"
            yield Check(f"libraries [{extra}]", SKIPPED, cause)
        elif is_needed and missing[extra]:
            cause = f"{', '.join(missing[extra])} of the extra [{extra}] not installed"
            yield Check(f"libraries [{extra}]", ERROR, cause, install_command(extra))
        elif is_needed:
            yield Check(f"libraries [{extra}]", OK, "installed")
    yield Check("other libraries", OK, f"installed: {', '.join(extra for extra in missing if not missing[extra])}")


def processor(config: EdgeConfig | CloudConfig) -> Iterator[Check]:
    """Checks the cores, and the instructions that the engines are compiled for."""
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    absent = [name for name in ("avx", "avx2", "fma") if flags and name not in flags[1].split()]
    shown = f"{usable_cores()} cores" + (f", without {', '.join(absent)}" if absent else "")
    if isinstance(config, CloudConfig) and "avx" in absent and config.engine in (None, AUTO, "tensorflow"):
        cause = f"{shown}: TensorFlow ends with an illegal instruction"
        yield Check("processor", ERROR, cause, "skylane cloud serve --engine onnxruntime")
    else:
        yield Check("processor", OK, shown)


def gpu(config: EdgeConfig | CloudConfig) -> Iterator[Check]:
    """Checks the NVIDIA GPUs and their driver."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.free", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=3, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        problem = "no NVIDIA driver" if isinstance(error, FileNotFoundError) else "nvidia-smi fails"
        if isinstance(config, CloudConfig) and config.device.startswith("gpu"):
            cause = f"{problem}, and the device is {config.device}"
            yield Check("GPU", ERROR, cause, "skylane cloud serve --device cpu")
        else:
            yield Check("GPU", OK, f"{problem}; none is required")
    else:
        yield Check("GPU", OK, "; ".join(listed.splitlines()))


def disk(folder: Path) -> Iterator[Check]:
    """Checks that the folder of a run, or the nearest one in which it can be created, takes files."""
    place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    remedy = "skylane edge play SOURCE --out OTHER_FOLDER"
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".skylane-doctor-") as trial:
            trial.write(bytes(_TRIAL_BYTES))
            trial.flush()
            os.fsync(trial.fileno())
        free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        causes = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}
        cause = causes.get(error.errno or 0, error.strerror)
        yield Check("disk", ERROR, f"{place} takes no file: {cause}", remedy)
        return
    shown = f"{free_bytes / 1e9:.1f} GB are free in {place}"
    if free_bytes < _LITTLE_BYTES:
        yield Check("disk", WARNING, f"{shown}: a long run may fill it", remedy)
    else:
        yield Check("disk", OK, shown)


_TIME_ERROR = 5  # adjtimex(2) returns this for a clock that is not synchronised.


def clock_synchronisation() -> Iterator[Check]:
    """Checks that the kernel's clock is synchronised."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(1024))  # A structure of zeros changes nothing.
    except (AttributeError, OSError):
        state = -1
    if state == _TIME_ERROR:
        cause = "not synchronised: the logs of two machines show different times (latencies are right all the same)"
        yield Check("clock", WARNING, cause, "sudo timedatectl set-ntp true")
    else:
        unknown = "this system does not say whether it is synchronised"
        yield Check("clock", OK, "synchronised") if state >= 0 else Check("clock", SKIPPED, unknown)


def models(config: EdgeConfig | CloudConfig) -> Iterator[Check]:
    """Checks the manifests of the models that a node loads, the hashes of their files, and that an engine reads them.

    Models are skipped once this has taken three seconds.
    """
    names: Sequence[str]
    try:
        if isinstance(config, CloudConfig):
            repository = Repository(config.repository or default_root())
            names = config.models or repository.names()
        else:
            repository = Repository(config.models or default_root())
            names = [config.local_model] if config.local_model else []
    except SkylaneError as error:
        yield Check("models", ERROR, str(error), "skylane model build road-small")
        return
    if isinstance(config, CloudConfig) and not names:
        yield Check("models", ERROR, f"{repository} has no models", "skylane model build road-small")
    ends_s = time.monotonic() + _HASHING_S
    root = config.repository if isinstance(config, CloudConfig) else config.models
    for name in names:
        if time.monotonic() > ends_s:
            yield Check(f"model {name}", SKIPPED, f"hashing takes too long here: run 'skylane model verify {name}'")
            continue
        try:
            stored = repository.find(name)
            stored.file()
            engine = choose_engine(ENGINES, stored.manifest.format, None)
        except SkylaneError as error:
            cause = error.cause if isinstance(error, ModelFileError) else str(error)
            remedy = f"skylane model build {name}"
            if root is not None:
                remedy += f" --models {root}"
            if isinstance(error, UnknownNameError) and error.known:
                near = get_close_matches(name, error.known, n=1, cutoff=0)[0]
                command = "cloud serve --model" if isinstance(config, CloudConfig) else "edge play SOURCE --local-model"
                remedy = f"skylane {command} {near}"
            yield Check(f"model {name}", ERROR, cause, remedy)
        else:
            yield Check(f"model {name}", OK, f"version {stored.version} for {engine}; its hash is right")


def ports(config: EdgeConfig | CloudConfig) -> Iterator[Check]:
    """Checks that the servers of a node can listen, and that their certificates and tokens can be used."""
    if isinstance(config, EdgeConfig):
        yield from _ports_of_vehicle(config)
        return
    ports = {name: Endpoint.parse(address, listens=True).port for name, address in config.addresses.items()}
    holders = {name: holder for name, port in ports.items() if (holder := _listener_at(port))}
    workers = [process for process in holders.values() if {"cloud", "serve"} <= set(process["cmdline"] or ())]
    names = {process["pid"]: _worker_of(process["cmdline"]) for process in workers}
    own = [pid for pid, name in names.items() if None in (config.worker, name) or name == config.worker]
    if own or not ports:
        shown = f"a worker listens there (process {own[0]})" if own else "no gateway is configured"
        yield Check("ports", OK, shown)
        return
    try:
        check_gateway(config)
    except PortTakenError as error:
        by = "it is in use"
        if holder := holders.get(error.protocol):
            other = names.get(holder["pid"])
            by = f"{f'worker {other}' if other else holder['name']} (process {holder['pid']}) listens there"
        yield Check("ports", ERROR, f"{error.problem}: {by}", f"ss -ltnp sport = :{ports[error.protocol]}")
    except SkylaneError as error:
        remedy = "skylane cloud serve --http HOST:PORT --gateway-tls-cert FILE --gateway-tls-key FILE"
        yield Check("ports", ERROR, str(error), remedy)
    else:
        yield Check("ports", OK, f"{', '.join(config.addresses.values())} free")


def _ports_of_vehicle(config: EdgeConfig) -> Iterator[Check]:
    if config.metrics is not None:
        endpoint = Endpoint.parse(config.metrics, listens=True)
        address = (endpoint.host or "127.0.0.1", endpoint.port)
        try:
            socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET).close()
        except OSError as error:
            cause = f"--metrics cannot listen at {endpoint}: {os.strerror(error.errno or 0)}"
            yield Check("ports", ERROR, cause, "skylane edge play SOURCE --metrics 127.0.0.1:OTHER_PORT")
        else:
            yield Check("ports", OK, f"{endpoint} free")
    if config.view_tls_cert is not None:
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(config.view_tls_cert, config.view_tls_key, password="")  # Nothing prompts for one.
        except OSError as error:
            problem = "they are no PEM certificate and its key" if isinstance(error, ssl.SSLError) else error.strerror
            cause = f"{config.view_tls_cert} and {config.view_tls_key} cannot be used: {problem}"
            yield Check("view", ERROR, cause, "skylane edge play SOURCE --view-tls-cert FILE --view-tls-key FILE")
        else:
            yield Check("view", OK, f"{config.view_tls_cert} fits its key")


def _worker_of(command: Sequence[str]) -> str | None:
    """Returns the name in the command line of a worker; None if the name is in a file or generated."""
    words = [word for argument in command for word in argument.split("=", 1)]
    return words[words.index("--worker") + 1] if "--worker" in words[:-1] else None


def _listener_at(port: int) -> dict[str, Any] | None:
    """Returns pid, name and command line of the process that listens at a port; None if this user cannot see it."""
    try:
        connections = psutil.net_connections("tcp")
        pids = (each.pid for each in connections if each.status == "LISTEN" and each.laddr and each.laddr.port == port)
        pid = next(pids, None)
        return psutil.Process(pid).as_dict(["pid", "name", "cmdline"]) if pid else None
    except psutil.Error:
        return None


def interrupted_runs(parent: Path = RUNS) -> Iterator[Check]:
    """Checks for runs whose vehicle node was killed, so that their last frames have no row yet."""
    killed = list(killed_runs(parent))
    if killed:
        cause = f"{len(killed)} killed runs in {parent} lack rows, such as {killed[0].name}"
        yield Check("runs", WARNING, cause, f"skylane report {killed[0]} --repair")
    else:
        yield Check("runs", OK, f"no run in {parent} was killed")

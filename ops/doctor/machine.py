"""Checks of this machine and its files: libraries, processor, GPU, disk, clock, models, ports and interrupted runs."""

import ctypes
import errno
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import psutil

from cloud.config import CloudConfig
from cloud.preflight import check_gateway
from edge.config import EdgeConfig
from edge.transports.transport import TRANSPORTS
from ops.doctor.check import Check
from shared.errors import SkylaneError, install_command
from shared.inference.table import ENGINES, choose_engine
from shared.models.repository import Repository, StoredModel, default_root
from shared.network.endpoint import Endpoint
from shared.runlog.repair import killed_runs
from shared.runlog.run_folder import RUNS
from shared.runtime.machine import package_version, usable_cores

_LITTLE_BYTES = 1 << 30  # Below this, a long run may fill the disk.
_TRIAL_BYTES = 1 << 20  # Written to find quotas and read-only disks, which do not show as missing free space.
_HASHING_S = 3.0  # Time for the hashes of models.
_REQUIREMENT = re.compile(r'(?P<name>[A-Za-z0-9._-]+).*?; extra == "(?P<extra>\w+)"')


def libraries(config: EdgeConfig | CloudConfig) -> Iterator[Check]:
    """Checks that the libraries of the extras that a configuration needs are installed."""
    try:
        required = requires("skylane") or []
    except PackageNotFoundError:
        yield Check.skipped("libraries", "Skylane is not installed as a package here")
        return
    missing: dict[str, list[str]] = {}
    extras: dict[str, None] = {}
    for found in filter(None, map(_REQUIREMENT.match, required)):
        extras[found["extra"]] = None
        if found["name"] != "skylane" and package_version(found["name"]) is None:
            missing.setdefault(found["extra"], []).append(found["name"])
    needed = _needed_extras(config)
    for extra in needed:
        if extra in missing:
            cause = f"{', '.join(missing[extra])} of the extra [{extra}] not installed"
            yield Check.error(f"libraries [{extra}]", cause, install_command(extra))
        else:
            yield Check.ok(f"libraries [{extra}]", "installed")
    others = [extra for extra in extras if extra not in missing and extra not in needed]
    yield Check.ok("other libraries", f"installed: {', '.join(others) or 'none'}")


def _needed_extras(config: EdgeConfig | CloudConfig) -> list[str]:
    if isinstance(config, CloudConfig):
        engine = ENGINES[config.engine].extra if config.engine and config.engine in ENGINES else "cloud"
        return [engine, *(["gateway"] if config.addresses else [])]
    over_rpc = TRANSPORTS[config.transport].needs_addresses
    return ["edge", *(["transports"] if over_rpc else []), *(["litert"] if config.local_model else [])]


def processor(config: EdgeConfig | CloudConfig) -> Iterator[Check]:
    """Checks the cores, and the instructions that the engines are compiled for."""
    cores = usable_cores()
    shown = f"{cores} cores of {platform.machine()}"
    try:
        flags = set(re.findall(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[0].split())
    except (OSError, IndexError):
        yield Check.ok("processor", shown)
        return
    absent = [name for name in ("avx", "avx2", "fma") if name not in flags]
    if isinstance(config, CloudConfig) and "avx" in absent:
        remedy = "skylane cloud serve --engine onnxruntime"
        yield Check.error("processor", f"{shown}, without AVX: TensorFlow ends with an illegal instruction", remedy)
    elif isinstance(config, CloudConfig) and absent:
        remedy = "skylane cloud serve --engine auto"
        yield Check.warning("processor", f"{shown}, without {', '.join(absent)}: inference is slow", remedy)
    else:
        yield Check.ok("processor", shown + (f", without {', '.join(absent)}" if absent else ", AVX2"))


def gpu(config: EdgeConfig | CloudConfig) -> Iterator[Check]:
    """Checks the NVIDIA GPUs and their driver."""
    wanted = isinstance(config, CloudConfig) and config.device.startswith("gpu")
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.free", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=3, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        problem = "no NVIDIA driver" if isinstance(error, FileNotFoundError) else "nvidia-smi fails"
        if wanted:
            yield Check.error("GPU", f"{problem}, but the device is a GPU", "skylane cloud serve --device cpu")
        else:
            yield Check.ok("GPU", f"none ({problem}); none is required")
        return
    yield Check.ok("GPU", "; ".join(listed.splitlines()))


def disk(folder: Path) -> Iterator[Check]:
    """Checks that a folder, or the folder in which it will be created, takes files."""
    place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".skylane-doctor-") as trial:
            trial.write(bytes(_TRIAL_BYTES))
            trial.flush()
            os.fsync(trial.fileno())
        free = shutil.disk_usage(place).free
    except OSError as error:
        reason = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}.get(
            error.errno or 0, error.strerror
        )
        yield Check.error("disk", f"{place} takes no file: {reason}", "skylane edge play SOURCE --out OTHER_FOLDER")
        return
    if free < _LITTLE_BYTES:
        cause = f"{free / 1e6:.0f} MB are free in {place}: a long run may fill it"
        yield Check.warning("disk", cause, "skylane edge play SOURCE --out OTHER_FOLDER")
    else:
        yield Check.ok("disk", f"{free / 1e9:.0f} GB are free in {place}")


_TIME_ERROR = 5  # The value of adjtimex(2) for a clock that nothing synchronises.


def clock_synchronisation() -> Iterator[Check]:
    """Checks that the kernel's clock is synchronised; Skylane measures the offset of two clocks, but logs compare badly."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(1024))  # All zero: changes nothing.
    except (AttributeError, OSError):
        yield Check.skipped("clock", "this system does not say whether its clock is synchronised")
        return
    if state == _TIME_ERROR:
        cause = "not synchronised: logs of two machines show different times (latencies are right all the same)"
        yield Check.warning("clock", cause, "sudo timedatectl set-ntp true")
    else:
        yield Check.ok("clock", "synchronised") if state >= 0 else Check.skipped("clock", "the kernel does not say")


def models(config: EdgeConfig | CloudConfig) -> Iterator[Check]:
    """Checks the manifests of models, the hashes of their files, and that an installed engine reads them."""
    if isinstance(config, EdgeConfig):
        names: Sequence[str] = (config.local_model,) if config.local_model else ()
        repository = Repository(config.models or default_root())
    else:
        repository = Repository(config.repository or default_root())
        try:
            names = config.models or repository.names()
        except SkylaneError as error:
            yield Check.failed("models", error)
            return
        if not names:
            yield Check.error("models", f"{repository} has no models", "skylane model build road-small")
    ends_s = time.monotonic() + _HASHING_S
    for name in names:
        if time.monotonic() > ends_s:
            yield Check.skipped(f"model {name}", f"hashing takes too long here: run 'skylane model verify {name}'")
            continue
        try:
            stored = repository.find(name)
        except SkylaneError as error:
            yield Check.error(f"model {name}", str(error), f"skylane model build {name}")
            continue
        yield _checked_model(stored)


def _checked_model(stored: StoredModel) -> Check:
    name = f"model {stored.name}"
    try:
        stored.file()
        engine = ENGINES[choose_engine(ENGINES, stored.manifest.format, None)]
    except SkylaneError as error:
        cause = str(error).partition(": it was changed")[0].partition(": build it")[0]
        return Check.error(name, cause, f"skylane model build {stored.name}")
    return Check.ok(name, f"version {stored.version}, {stored.manifest.format} [{engine.extra}], its hash is right")


def ports(config: CloudConfig) -> Iterator[Check]:
    """Checks that a worker's servers can listen, with their certificate and tokens."""
    if not config.addresses:
        yield Check.skipped("ports", "no gateway is configured")
        return
    for name, address in config.addresses.items():
        port = Endpoint.parse(address, listens=True).port
        holder = _listener_of(port)
        if holder is not None and {"cloud", "serve"} <= set(holder.cmdline()):
            yield Check.ok(f"port {name}", f"a worker listens at {address} already (process {holder.pid})")
            return
    try:
        check_gateway(config)
    except SkylaneError as error:
        port = next(
            (Endpoint.parse(each, listens=True).port for each in config.addresses.values() if each in str(error)), 0
        )
        taken = "is in use" in str(error)
        holder = _listener_of(port) if taken else None
        by = f", by {holder.name()} (process {holder.pid})" if holder else ""
        failed = Check.failed("ports", error)
        yield Check.error("ports", failed.finding + by, f"ss -ltnp sport = :{port}" if taken else failed.remedy)
        return
    yield Check.ok("ports", f"{', '.join(config.addresses.values())} free")


def _listener_of(port: int) -> psutil.Process | None:
    """Returns the process that listens at a port; None if there is none that this user may see."""
    try:
        found = (
            each.pid
            for each in psutil.net_connections("tcp")
            if each.status == "LISTEN" and each.laddr and each.laddr.port == port
        )
        pid = next(found, None)
        return psutil.Process(pid) if pid else None
    except psutil.Error:
        return None


def interrupted_runs(parent: Path = RUNS) -> Iterator[Check]:
    """Checks for runs of killed vehicles, whose last frames have no row yet."""
    killed = list(killed_runs(parent))
    if killed:
        cause = f"{len(killed)} killed runs in {parent} lack rows, such as {killed[0].name}"
        yield Check.warning("runs", cause, f"skylane report {killed[0]} --repair")
    else:
        yield Check.ok("runs", f"every run in {parent} is complete")

"""Checks before a worker loads its models, which takes longer: addresses and files of the gateway, and system limits."""

import ssl
from collections.abc import Mapping
from pathlib import Path

from cloud.config import CloudConfig
from cloud.frontend import FRONTENDS
from cloud.gateway.bind import listen
from cloud.gateway.common.auth import Authenticator
from cloud.gateway.limits import max_grpc_threads, most_connections
from cloud.models.loader import engine_threads
from shared.errors import SkylaneError
from shared.files import check_file
from shared.logs import get_logger
from shared.models.manifest import Placement
from shared.network.tls import check_not_expired
from shared.registry import load
from shared.runtime.machine import usable_cores
from shared.runtime.open_files import connection_limits, raise_file_limit

_SELECTABLE_FILES = 1024  # The MQTT library waits with select(), which takes no file with a higher number.


class GatewayError(SkylaneError):
    """Settings with which the gateway cannot start."""


def check_gateway(config: CloudConfig) -> None:
    """Checks ports, files and libraries of the servers before models are loaded, which takes longer.

    Raises:
        SkylaneError: a port is in use, a file cannot be used, or a library is missing.
    """
    for name, address in config.addresses.items():
        listen(name, address).close()
    Authenticator.from_file(config.tokens)
    certificate, key = config.gateway_tls_cert, config.gateway_tls_key
    if certificate is not None and key is not None:

        def refuse_password() -> bytes:  # Without this callback OpenSSL prompts at the terminal and waits.
            raise GatewayError(f"the key {key} is protected by a password: give a key without one")

        try:
            check_file(certificate)
            check_file(key)
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, refuse_password)
        except OSError as error:
            problem = "give a PEM certificate and its key" if isinstance(error, ssl.SSLError) else error.strerror
            raise GatewayError(f"{certificate} and {key} cannot be used for TLS: {problem}") from error
        check_not_expired(certificate, "renew it, callers do not trust it")
    for name in config.addresses:
        load("frontend", FRONTENDS, name)


def limit_connections(config: CloudConfig) -> Mapping[str, int]:
    """Raises the limit of open files, and returns and logs how many connections each server may hold below it.

    Raises:
        SkylaneError: there are too few files for connections.
    """
    files = raise_file_limit()
    wanted = {name: most for name, most in most_connections(config.max_calls).items() if name in config.addresses}
    limits = connection_limits(wanted, files if config.no_broker else min(files, _SELECTABLE_FILES))
    if limits:
        _LOG.info("connections limited", open_files=files, **limits)
    return limits


_OWN_THREADS = 13  # The main thread, MQTT, control, refusals, load reports, the sampler, and those of libraries.
_INSTANCES = 2  # Concurrent batches of a model, if chosen by the engine.
_HTTP_EXECUTOR = 32  # Threads of asyncio's default executor, which has at most four more than there are cores.
_PIDS_FILE = Path("/sys/fs/cgroup/pids.max")  # The limit of the process's own container (cgroup v2).

_LOG = get_logger("cloud")


def max_threads(config: CloudConfig, models: int) -> int:
    """The largest number of threads of a worker with this number of models, including those of isolated engines."""
    cores = usable_cores()
    engines = engine_threads(Placement(intra_threads=config.threads))
    total = _OWN_THREADS + config.decoders + config.encoders + engines
    # ONNX Runtime and OpenVINO have a pool for each model.
    total += models * ((config.instances or _INSTANCES) + (config.threads or cores))
    if config.isolate:
        total += models * (1 + engines)  # The thread that reads the output of the process, and its threads.
    if "http" in config.addresses:
        total += 1 + min(_HTTP_EXECUTOR, cores + 4)
    if "grpc" in config.addresses:
        total += max_grpc_threads(config.max_calls)
    return total


def warn_if_pids_limit_is_low(config: CloudConfig, models: int, path: Path = _PIDS_FILE) -> None:
    """Logs a warning if the container's limit is lower than what a worker may need; `path` holds the limit."""
    try:
        limit = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # The file is missing, or holds "max": no limit.
        return
    most = max_threads(config, models)
    if limit < most:
        _LOG.warning(
            "the container's pids_limit is lower than what this worker may need",
            pids_limit=limit,
            threads=most,
            remedy="raise pids_limit, or lower --max-calls, --threads or --instances",
        )

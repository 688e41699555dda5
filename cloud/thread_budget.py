"""The largest number of threads of a worker, and a warning if its container allows fewer (docs/guides/sizing.md, Threads)."""

from pathlib import Path

from cloud.config import CloudConfig
from cloud.gateway.grpc.threads import max_grpc_threads
from cloud.models.loader import engine_threads
from shared.logs import get_logger
from shared.models.manifest import Placement
from shared.runtime.machine import usable_cores

_OWN_THREADS = 13  # The main thread, MQTT, control, refusals, load reports, the sampler, and those of libraries.
_INSTANCES = 2  # Concurrent batches of a model, if chosen by the engine.
_HTTP_EXECUTOR = 32  # Threads of asyncio's default executor, which has at most four more than there are cores.
_PIDS_FILE = Path("/sys/fs/cgroup/pids.max")  # The limit of the process's own container (cgroup v2).

_LOG = get_logger("cloud")


def max_threads(settings: CloudConfig, models: int) -> int:
    """The largest number of threads of a worker with this number of models, including those of isolated engines."""
    cores = usable_cores()
    engines = engine_threads(Placement(intra_threads=settings.threads))
    total = _OWN_THREADS + settings.decoders + settings.encoders + engines
    # ONNX Runtime and OpenVINO have a pool for each model.
    total += models * ((settings.instances or _INSTANCES) + (settings.threads or cores))
    if settings.isolate:
        total += models * (1 + engines)  # The thread that reads the output of the process, and its threads.
    if "http" in settings.addresses:
        total += 1 + min(_HTTP_EXECUTOR, cores + 4)
    if "grpc" in settings.addresses:
        total += max_grpc_threads(settings.max_calls)
    return total


def warn_if_pids_limit_is_low(settings: CloudConfig, models: int, path: Path = _PIDS_FILE) -> None:
    """Logs a warning if the container's limit is lower than what a worker may need; `path` holds the limit."""
    try:
        limit = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # The file is missing, or holds "max": no limit.
        return
    most = max_threads(settings, models)
    if limit < most:
        _LOG.warning(
            "the container's pids_limit is lower than what this worker may need",
            pids_limit=limit,
            threads=most,
            remedy="raise pids_limit, or lower --max-calls, --threads or --instances",
        )

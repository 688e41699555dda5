"""An engine that runs in a separate process, which is replaced when it is lost."""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cloud.isolation.process import EngineProcess, ProcessLostError
from shared.errors import SkylaneError
from shared.inference.engine import DeviceError, EngineError, Images, InferenceError, Outputs
from shared.inference.table import ENGINES
from shared.logs import get_logger
from shared.models.manifest import Manifest, Placement, Precision

_LOG = get_logger("cloud")
_HANG_FACTOR = 20  # Multiple of the shortest inference after which a batch counts as hanging.


class IsolationError(SkylaneError):
    """An engine cannot be opened in a separate process."""


@dataclass(frozen=True, slots=True)
class IsolationLimits:
    """Limits of the process of an engine."""

    hang_s: float = 10.0  # Per batch; a batch may always take 20 times the shortest one.
    start_s: float = 180.0  # Limit for opening the model, and for the first batch.
    memory_bytes: int | None = None  # Allocations of data beyond this limit fail. None: no limit.


class IsolatedEngine:
    """Runs any engine in a child process; images and outputs pass through shared memory.

    A batch on which the process raises, hangs, dies or runs out of memory raises InferenceError. A lost process is
    replaced at once; the next batch waits until the new one is warmed up. Not thread-safe.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        placement: Placement,
        *,
        engine: str,
        limits: IsolationLimits = IsolationLimits(),
    ) -> None:
        """Opens the engine.

        Args:
            path: The model file.
            manifest: Its manifest.
            placement: The device.
            engine: A key of ENGINES.
            limits: The limits of the process.

        Raises:
            EngineError, DeviceError: the engine raised it.
            IsolationError: the process died, or the library of the engine is missing.
        """
        self._path = path
        self.limits = limits  # May be changed between batches.
        self.name = engine
        entry = ENGINES[self.name]
        self._opening: dict[str, Any] = {
            "engine": self.name,
            "entry": entry.path,
            "extra": entry.extra,
            "file": str(path.absolute()),
            "manifest": manifest.model_dump_json(exclude_none=True),
            "placement": asdict(replace(placement, instances=1)),
            "memory_bytes": limits.memory_bytes,
            "warm_up": 0,  # The caller warms up the first process and measures it.
        }
        self._fastest_s: float | None = None  # Shortest inference of one image.
        self._facts: Any = None  # The properties of the engine in the first process.
        self._process = EngineProcess(self._opening)
        try:
            facts = self._facts = self._wait_until_open()
        except ProcessLostError as error:
            self._process.kill()
            limit = limits.memory_bytes
            hint = "" if limit is None else f"; its memory limit is {limit >> 20} MiB, which may be too low"
            raise IsolationError(f"{path}: {error}{hint}") from error
        except BaseException:
            self._process.kill()
            raise
        self.device: str = facts["device"]
        self.precision = Precision(facts["precision"])
        self.batch_size: int | None = facts["batch_size"]
        self._opening["warm_up"] = max(1, manifest.warm_up.runs)

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self._process.pid

    def infer(self, batch: Images) -> Outputs:
        """See Engine."""
        try:
            self._wait_until_open()
            started_s = time.perf_counter()
            outputs = self._process.infer(batch, self._timeout_s(len(batch)))
        except ProcessLostError as error:
            self._replace(error)
            raise
        except (EngineError, DeviceError, IsolationError) as error:
            self._replace(error)
            raise InferenceError(f"the engine's process could not be replaced: {error}") from error
        took_s = (time.perf_counter() - started_s) / len(batch)
        self._fastest_s = min(took_s, self._fastest_s or took_s)
        return outputs

    def close(self) -> None:
        """See Engine."""
        self._process.close()

    def _replace(self, error: SkylaneError) -> None:
        """Starts another process, which opens the model in the background."""
        _LOG.warning("engine restarted", file=self._path.name, engine=self.name, pid=self.pid, reason=str(error))
        self._process.kill()
        self._process = EngineProcess(self._opening)

    def _timeout_s(self, size: int) -> float:
        if self._fastest_s is None:
            return self.limits.start_s
        return max(self.limits.hang_s, _HANG_FACTOR * self._fastest_s * size)

    def _wait_until_open(self) -> Any:
        facts = self._process.wait_until_open(self.limits.start_s)
        match facts["kind"]:
            case "open":
                if self._facts and facts["sha256"] != self._facts["sha256"]:
                    raise IsolationError(f"{self._path} has changed since it was loaded: load it again")
                return facts
            case "engine":
                raise EngineError(self._path, facts["problem"])
            case "device":
                raise DeviceError(facts["device"], facts["problem"].partition(": ")[2])
        raise IsolationError(facts["problem"])

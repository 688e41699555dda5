"""An engine whose model runs in a process of its own; a process that is lost is replaced."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud.engines.engine import (
    ENGINES,
    FORMATS,
    DeviceError,
    EngineError,
    Images,
    InferenceError,
    Outputs,
    Placement,
    Precision,
)
from cloud.isolation.process import EngineProcess, ProcessLostError
from cloud.models.manifest import Manifest
from shared.errors import SkylaneError
from shared.logs import get_logger

_LOG = get_logger("cloud")
_HANG_FACTOR = 20  # Times what inference takes: nothing that still works is so slow.


class IsolationError(SkylaneError):
    """An engine cannot be had in a process of its own."""


@dataclass(frozen=True, slots=True)
class IsolationLimits:
    """What an engine's process may take."""

    hang_s: float = 10.0  # For a batch, or twenty times what it takes when warm: the larger.
    start_s: float = 180.0  # To open the model, and for the very first batch.
    memory_bytes: int | None = (
        None  # Of data; what the model cannot allocate then fails or ends it. None: the machine's.
    )


class IsolatedEngine:
    """Any engine, in a child process; pictures and answers pass through shared memory.

    A batch on which the process raises, hangs, dies or runs out of memory raises InferenceError; a lost process is
    replaced at once by one that warms itself up, which the next batch waits for. Used by one thread at a time.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        placement: Placement,
        *,
        engine: str | None = None,
        limits: IsolationLimits = IsolationLimits(),
    ) -> None:
        """`engine`: a key of ENGINES; None: the format's own.

        Raises:
            EngineError, DeviceError: as of the engine itself.
            IsolationError: its process died over it, or its library is missing.
        """
        self._path = path
        self.limits = limits  # May be changed between two batches.
        self.name = engine or FORMATS[manifest.format]
        entry = ENGINES[self.name]
        self._opening: dict[str, Any] = {
            "engine": self.name,
            "entry": entry.path,
            "extra": entry.extra,
            "file": str(path.absolute()),
            "manifest": manifest.model_dump_json(exclude_none=True),
            "placement": {
                "device": placement.device,
                "intra_threads": placement.intra_threads,
                "inter_threads": placement.inter_threads,
                "instances": 1,
                "precision": placement.precision,
            },
            "memory_bytes": limits.memory_bytes,
            "warm_up": 0,  # The first one's is the caller's, who wants to know how long it takes.
        }
        self._quickest_s: float | None = None  # Of one picture.
        self._facts: Any = None  # What the first process said of itself.
        self._process = EngineProcess(self._opening)
        try:
            facts = self._facts = self._opened(self._process)
        except ProcessLostError as error:
            self._process.kill()
            bytes_ = limits.memory_bytes
            bound = "" if bytes_ is None else f"; its data may take {bytes_ >> 20} MiB: give more if that is the reason"
            raise IsolationError(f"{path}: {error}{bound}") from error
        except BaseException:
            self._process.kill()
            raise
        self.device: str = facts["device"]
        self.precision = Precision(facts["precision"])
        self.batch_size: int | None = facts["batch_size"]
        self._opening["warm_up"] = max(1, manifest.warm_up.runs)

    @property
    def pid(self) -> int:
        """The number of the process that runs the model now."""
        return self._process.pid

    def infer(self, batch: Images) -> Outputs:
        """See Engine."""
        try:
            self._opened(self._process)
            begun_s = time.perf_counter()
            outputs = self._process.infer(batch, self._patience_s(len(batch)))
        except ProcessLostError as error:
            self._replace(error)
            raise
        except (EngineError, DeviceError, IsolationError) as error:
            self._replace(error)
            raise InferenceError(f"the engine's process could not be replaced: {error}") from error
        took_s = (time.perf_counter() - begun_s) / len(batch)
        self._quickest_s = min(took_s, self._quickest_s or took_s)
        return outputs

    def close(self) -> None:
        """See Engine."""
        self._process.close()

    def _replace(self, error: SkylaneError) -> None:
        """Starts another process, which opens the model while the sender of the frame gets the error."""
        _LOG.warning("engine restarted", file=self._path.name, engine=self.name, pid=self.pid, reason=str(error))
        self._process.kill()
        self._process = EngineProcess(self._opening)

    def _patience_s(self, size: int) -> float:
        if self._quickest_s is None:
            return self.limits.start_s
        return max(self.limits.hang_s, _HANG_FACTOR * self._quickest_s * size)

    def _opened(self, process: EngineProcess) -> Any:
        facts = process.opened(self.limits.start_s)
        match facts["kind"]:
            case "open":
                if self._facts and facts["sha256"] != self._facts["sha256"]:
                    raise IsolationError(f"{self._path} was changed since it was loaded: load it again")
                return facts
            case "engine":
                raise EngineError(self._path, facts["problem"])
            case "device":
                raise DeviceError(facts["device"], facts["problem"].partition(": ")[2])
        raise IsolationError(facts["problem"])

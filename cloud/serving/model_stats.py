"""The tally: how many frames each model answered, and where their time went; those of all doors."""

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from cloud.serving.request import Request
from shared.messages.frame import ResultMessage, Status
from shared.stages import CLOUD_STAGES, Stage, durations_ns

SPENT = {  # What Triton divides a frame's time into, and our stages that are that.
    "queue": (Stage.DEQUEUED, Stage.BATCHED),
    "compute_input": (Stage.DECODED,),
    "compute_infer": (Stage.INFERRED,),
    "compute_output": (Stage.POSTPROCESSED, Stage.MASK_ENCODED),
}

_MOST_MODELS = 256  # Whose refused frames are counted by name: anybody may name a model.


@dataclass(slots=True)
class ModelStats:
    """What a version of a model has done since the worker started."""

    answered: int = 0
    executions: float = 0.0  # Batches: each frame of n brings 1/n.
    stages_ns: Counter[Stage] = field(default_factory=Counter)  # Of answered frames, summed.

    def stage_ns(self, part: str) -> int:
        """What answered frames spent, together, in one of SPENT."""
        return sum(self.stages_ns[stage] for stage in SPENT[part])


class Tally:
    """Told of every answer by the replier. Any thread may add, and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: defaultdict[tuple[str, str], ModelStats] = defaultdict(ModelStats)
        self._refused: Counter[tuple[str, Status]] = Counter()

    def add(self, request: Request, message: ResultMessage) -> None:
        """A frame was answered; `message` is what its sender is told."""
        with self._lock:
            if message.status is not Status.ANSWERED:
                self._refuse(request, message.status)
                return
            tally = self._models[message.model, message.model_version]
            tally.answered += 1
            tally.executions += 1 / request.batch_size
            times = {stage: request.times[stage] for stage in CLOUD_STAGES if stage in request.times}
            tally.stages_ns.update(durations_ns(times))

    @property
    def models(self) -> Mapping[tuple[str, str], ModelStats]:
        """By model and version, as they stand now."""
        with self._lock:
            return {
                key: ModelStats(tally.answered, tally.executions, tally.stages_ns.copy())
                for key, tally in self._models.items()
            }

    @property
    def refused(self) -> Mapping[tuple[str, Status], int]:
        """Frames that got no result, by model, "" for all that were named too late, and status."""
        with self._lock:
            return dict(self._refused)

    def _refuse(self, request: Request, status: Status) -> None:
        names = {model for model, _ in self._refused}
        known = request.model in names or len(names) < _MOST_MODELS
        self._refused[request.model if known else "", status] += 1

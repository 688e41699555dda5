"""Statistics per model, over all frontends: the number of frames, and the time spent in each stage."""

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from cloud.serving.request import Request
from shared.messages.frame import ResultMessage, Status
from shared.stages import CLOUD_STAGES, Stage, durations_ns

TRITON_STAGES = {  # The durations in Triton's statistics, and the stages that they consist of here.
    "queue": (Stage.DEQUEUED, Stage.BATCHED),
    "compute_input": (Stage.DECODED,),
    "compute_infer": (Stage.INFERRED,),
    "compute_output": (Stage.POSTPROCESSED, Stage.MASK_ENCODED),
}

_MAX_MODELS = 256  # Model names with a counter of refused frames; clients choose the names.


@dataclass(slots=True)
class ModelStats:
    """Statistics of one version of a model since the start of the worker."""

    answered: int = 0
    executions: float = 0.0  # Batches; a frame in a batch of n adds 1/n.
    stages_ns: Counter[Stage] = field(default_factory=Counter)  # Total duration over all answered frames.

    def stage_ns(self, part: str) -> int:
        """Total duration of one of TRITON_STAGES over all answered frames."""
        return sum(self.stages_ns[stage] for stage in TRITON_STAGES[part])


class ServingStats:
    """Collects the statistics of all models from their replies. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: defaultdict[tuple[str, str], ModelStats] = defaultdict(ModelStats)
        self._refused: Counter[tuple[str, Status]] = Counter()

    def add(self, request: Request, reply: ResultMessage) -> None:
        """Adds a reply, which may be a refusal."""
        with self._lock:
            if reply.status is not Status.ANSWERED:
                names = {model for model, _ in self._refused}
                is_counted = request.model in names or len(names) < _MAX_MODELS
                self._refused[request.model if is_counted else "", reply.status] += 1
                return
            stats = self._models[reply.model, reply.model_version]
            stats.answered += 1
            stats.executions += 1 / request.batch_size
            times = {stage: request.times[stage] for stage in CLOUD_STAGES if stage in request.times}
            stats.stages_ns.update(durations_ns(times))

    @property
    def models(self) -> Mapping[tuple[str, str], ModelStats]:
        """A copy of the statistics by model and version."""
        with self._lock:
            return {
                key: ModelStats(stats.answered, stats.executions, stats.stages_ns.copy())
                for key, stats in self._models.items()
            }

    @property
    def refused(self) -> Mapping[tuple[str, Status], int]:
        """Number of refused frames by model and status; the model "" stands for all names beyond the limit."""
        with self._lock:
            return dict(self._refused)

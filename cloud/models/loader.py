"""Opens and warms up models of the repository, at the start of a worker and while it serves."""

from dataclasses import dataclass, field
from time import perf_counter

from cloud.engines.placement import Placement
from cloud.isolation.engine import IsolationLimits
from cloud.models.model import Model
from cloud.models.repository import Repository
from shared.errors import SkylaneError
from shared.logs import get_logger
from shared.runtime.machine import usable_cores
from shared.runtime.threads import ThreadsExhaustedError, check_threads_available, is_thread_limit

_ENGINE_THREADS = 8  # Threads of an engine's library besides those per core, at most.
_LOG = get_logger("cloud")


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """A repository and the settings with which its models run."""

    repository: Repository
    placement: Placement = Placement()  # noqa: RUF009 - frozen.
    max_batch: int | None = None  # None: from each manifest.
    warm_up_runs: int | None = None  # None: from each manifest.
    engine: str | None = None  # None: from each manifest.
    isolated: bool = False  # True if each engine runs in a separate process.
    limits: IsolationLimits = IsolationLimits()  # noqa: RUF009 - frozen. Of isolated engines.
    problems: dict[tuple[str, str | None], str] = field(default_factory=dict)  # Last error by name and given version.

    def load(self, name: str, version: str | None = None) -> Model:
        """Opens and warms up a model, by default its highest version.

        Raises:
            InstancesError: its engine cannot run the requested number of concurrent batches.
            InferenceError: the warm-up failed.
            ThreadsExhaustedError: the system allows too few threads.
            SkylaneError: see `Repository.load`.
        """
        log = _LOG.bind(model=name, **({"version": version} if version else {}))
        log.info("loading model")
        start_s = perf_counter()
        try:
            model = self._open(name, version)
        except Exception as error:
            is_known = isinstance(error, SkylaneError)
            reason = self.problems[name, version] = str(error) if is_known else f"{type(error).__name__}: {error}"
            log.error("model refused", reason=reason, exc_info=not is_known)  # noqa: TRY400  See exc_info.
            raise
        card = model.card
        for requested in (None, card.version):
            self.problems.pop((name, requested), None)
        measured = {"cold_ms": card.cold_ms, "warm_ms": card.warm_ms}
        log.info(
            "model loaded",
            version=card.version,
            engine=card.engine,
            precision=str(card.precision),
            device=model.device,
            seconds=round(perf_counter() - start_s, 2),
            **{key: round(value, 1) for key, value in measured.items() if value is not None},
            details=model.describe(),
        )
        for warning in model.warnings:
            log.warning("model warning", warning=warning)
        return model

    def _open(self, name: str, version: str | None) -> Model:
        try:
            check_threads_available(engine_threads(self.placement))
            model = self.repository.load(
                name,
                self.placement,
                self.max_batch,
                version=version,
                engine=self.engine,
                isolated=self.isolated,
                limits=self.limits,
            )
            try:
                if self.placement.instances is not None:
                    model.instances = self.placement.instances
                model.warm_up(self.warm_up_runs)
            except BaseException:
                model.close()
                raise
        except (RuntimeError, OSError) as error:
            if not is_thread_limit(error):
                raise
            raise ThreadsExhaustedError from error
        return model


def engine_threads(placement: Placement) -> int:
    """Returns the largest number of threads that opening a model starts.

    TensorFlow has a pool within operations, one between them, and one for other work.
    """
    cores = usable_cores()
    return (placement.intra_threads or cores) + (placement.inter_threads or cores) + cores + _ENGINE_THREADS

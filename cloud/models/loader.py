"""Opens and warms up models of the repository, at the start of a worker and while it serves."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter

from cloud.isolation.engine import IsolationLimits
from cloud.models.engine_selection import select_engine
from cloud.models.opening import open_model
from shared.errors import SkylaneError
from shared.inference.model import Model
from shared.inference.table import AUTO
from shared.logs import get_logger
from shared.models.manifest import Placement
from shared.models.repository import Repository, StoredModel
from shared.runtime.machine import usable_cores
from shared.threads import ThreadsExhaustedError, check_threads_available, is_thread_limit

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
    isolation: IsolationLimits | None = None  # Limits if each engine runs in a separate process; None: in this one.
    problems: dict[tuple[str, str | None], str] = field(default_factory=dict)  # Last error by name and given version.

    def find(self, name: str, version: str | None = None) -> StoredModel:
        """Returns a model of the repository, see `Repository.find`; an error is logged."""
        with self._logged(name, version):
            return self.repository.find(name, version)

    def open(self, name: str, version: str | None = None) -> Model:
        """Opens a model of the repository without warm-up.

        The engine `auto` is the fastest one, see `cloud.models.engine_selection`; it may run a converted model under
        the requested name.

        Raises:
            SkylaneError: see `Repository.find`, `open_model` and `select_engine`.
        """
        return self._open(self.repository.find(name, version))

    def load(self, stored: StoredModel) -> Model:
        """Opens and warms up a model.

        Raises:
            InferenceError: the warm-up failed.
            ThreadsExhaustedError: the system allows too few threads.
            SkylaneError: its engine cannot run the requested number of concurrent batches; or see `open`.
        """
        log = _LOG.bind(model=stored.name, version=stored.version)
        log.info("loading model")
        start_s = perf_counter()
        with self._logged(stored.name, stored.version):
            model = self._warmed_up(stored)
        self.problems.pop((stored.name, None), None)
        card = model.card
        measured = {"cold_ms": card.cold_ms, "warm_ms": card.warm_ms}
        log.info(
            "model loaded",
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

    def _open(self, stored: StoredModel) -> Model:
        engine = self.engine or stored.manifest.engine
        if engine != AUTO:
            return open_model(stored, engine, self.placement, self.max_batch, self.isolation)
        choice = select_engine(self.repository, stored, self.placement)
        chosen = choice.candidate
        placement = replace(self.placement, precision=chosen.precision)
        model = open_model(chosen.stored, chosen.engine, placement, self.max_batch, self.isolation)
        model.set_identity(stored.name, stored.version, str(choice))
        return model

    def _warmed_up(self, stored: StoredModel) -> Model:
        try:
            check_threads_available(engine_threads(self.placement))
            model = self._open(stored)
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

    @contextmanager
    def _logged(self, name: str, version: str | None) -> Iterator[None]:
        """Logs an error and stores it in `problems`; removes the last one if there is none."""
        try:
            yield
        except Exception as error:
            is_known = isinstance(error, SkylaneError)
            reason = self.problems[name, version] = str(error) if is_known else f"{type(error).__name__}: {error}"
            log = _LOG.bind(model=name, **({"version": version} if version else {}))
            log.error("model refused", reason=reason, exc_info=not is_known)  # noqa: TRY400  See exc_info.
            raise
        self.problems.pop((name, version), None)


def engine_threads(placement: Placement) -> int:
    """Returns the largest number of threads that opening a model starts.

    TensorFlow has a pool within operations, one between them, and one for other work.
    """
    cores = usable_cores()
    return (placement.intra_threads or cores) + (placement.inter_threads or cores) + cores + _ENGINE_THREADS

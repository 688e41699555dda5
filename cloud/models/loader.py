"""The loader: how a worker opens a model of its repository, at its start and while frames flow."""

from dataclasses import dataclass, field
from time import perf_counter

from cloud.engines.engine import Placement
from cloud.isolation.engine import IsolationLimits
from cloud.models.model import Model
from cloud.models.repository import Repository
from shared.errors import SkylaneError
from shared.logs import get_logger
from shared.runtime.machine import usable_cores
from shared.runtime.threads import ThreadsExhaustedError, check_threads_available, is_thread_limit

_LOG = get_logger("cloud")


_ENGINE_THREADS = 8  # What an engine's library starts at most beside the threads that it has a core.


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """A repository, and how the models in it are to run."""

    repository: Repository
    placement: Placement = Placement()  # noqa: RUF009 - frozen.
    max_batch: int | None = None  # None: as each model's manifest says; so for the two below.
    warm_up_runs: int | None = None
    engine: str | None = None
    isolated: bool = False  # Whether each engine runs in a process of its own, and
    limits: IsolationLimits = IsolationLimits()  # noqa: RUF009 - frozen. What such a process may take.
    problems: dict[tuple[str, str | None], str] = field(
        default_factory=dict
    )  # Why loads failed, as they were asked for.

    def load(self, name: str, version: str | None = None) -> Model:
        """Checks a model's file, opens it and warms it up; without a version, the highest one.

        Raises:
            SkylaneError: as `Repository.load`; InstancesError where its engine infers one batch at a time and is to infer
                more; InferenceError where it fails in its warm-up; ThreadsExhaustedError where the system allows too few
                threads for it.
        """
        log = _LOG.bind(model=name, **({"version": version} if version else {}))
        log.info("loading model")
        begun_s = perf_counter()
        try:
            model = self._opened(name, version)
        except Exception as error:
            is_known = isinstance(error, SkylaneError)
            reason = self.problems[name, version] = str(error) if is_known else f"{type(error).__name__}: {error}"
            log.error("model refused", reason=reason, exc_info=not is_known)  # noqa: TRY400  See exc_info.
            raise
        card = model.card
        for asked_for in (None, card.version):
            self.problems.pop((name, asked_for), None)
        measured = {"cold_ms": card.cold_ms, "warm_ms": card.warm_ms}
        log.info(
            "model loaded",
            version=card.version,
            engine=card.engine,
            precision=str(card.precision),
            device=model.device,
            seconds=round(perf_counter() - begun_s, 2),
            **{key: round(value, 1) for key, value in measured.items() if value is not None},
            details=model.describe(),
        )
        for warning in model.warnings:
            log.warning("model warning", warning=warning)
        return model

    def _opened(self, name: str, version: str | None) -> Model:
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
    """The most threads that opening a model starts: TensorFlow has pools within, between and outside of operations."""
    cores = usable_cores()
    return (placement.intra_threads or cores) + (placement.inter_threads or cores) + cores + _ENGINE_THREADS

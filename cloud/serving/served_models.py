"""The models that a worker serves: each version has a batcher with its own threads, and a load."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from cloud.serving.admission import Admission
from cloud.serving.batching import Batcher
from cloud.serving.request import Request
from shared.inference.model import Model
from shared.messages.load import WorkerLoad
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MAX_MS, MessageError
from shared.models.repository import version_rank
from shared.threads import ThreadGroup

_DRAIN_S = 30.0


class ServedModel:
    """A loaded version of a model with its batcher, the only caller of the engine, and the threads that run it."""

    def __init__(self, model: Model, batcher: Batcher, *, owns_model: bool = False, drain_s: float = _DRAIN_S) -> None:
        """`owns_model`: whether `close` closes the model. `drain_s`: the longest wait for a batch in the engine."""
        self.model = model
        self.batcher = batcher
        self._owns_model = owns_model
        self._drain_s = drain_s
        self._threads: list[threading.Thread] = []

    @property
    def card(self) -> ModelCard:
        """The model's card."""
        return self.model.card

    @property
    def key(self) -> tuple[str, str]:
        """Name and version."""
        return (self.card.name, self.card.version)

    def start(self, threads: ThreadGroup) -> None:
        """Starts the inference threads."""
        name = f"engine-{self.card.name}-{self.card.version}"
        self._threads = [threads.start(f"{name}-{i}", self.batcher.run) for i in range(self.model.instances)]

    def close(self) -> bool:
        """Finishes the accepted frames, stops the threads and frees the model; returns whether that was in time.

        The model of a hanging engine stays open, because the engine still uses it.
        """
        self.batcher.close()
        for thread in self._threads:
            thread.join(self._drain_s)
            if thread.is_alive():
                return False
        if self._owns_model:
            self.model.close()
        return True


class ServedModels:
    """The served models by name and version. Any thread may read it; changes take a lock."""

    def __init__(self) -> None:
        # The versions of each model, the current one first. It is replaced as a whole, so that readers need no lock.
        self._versions: Mapping[str, tuple[ServedModel, ...]] = {}
        self._lock = threading.Lock()

    @property
    def all(self) -> tuple[ServedModel, ...]:
        """All versions, sorted by name; the current version of each model is the first."""
        return tuple(served for _, versions in sorted(self._versions.items()) for served in versions)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models, sorted."""
        return tuple(sorted(self._versions))

    def cards(self) -> tuple[ModelCard, ...]:
        """The cards of all versions, in the order of `all`."""
        return tuple(served.card for served in self.all)

    def is_current(self, served: ServedModel) -> bool:
        """True if this version serves frames that name no version."""
        current = self.get(served.card.name, None)
        return current is not None and current.key == served.key

    def find(self, model: str, version: str | None) -> ServedModel:
        """Returns a version of a model, without `version` the current one.

        Raises:
            MessageError: it is not served; the message lists the served models.
        """
        served = self.get(model, version)
        if served is None:
            wanted = model if version is None else f"{model} version {version}"
            available = ", ".join(f"{card.name} version {card.version}" for card in self.cards())
            raise MessageError(f"{wanted} is not served here: ask for {available or 'another worker'}")
        return served

    def get(self, model: str, version: str | None) -> ServedModel | None:
        """Same as `find`, but returns None if it is not served."""
        versions = self._versions.get(model, ())
        return next((served for served in versions if version in (None, served.card.version)), None)

    def set_current(self, served: ServedModel, *, keep: bool = False) -> tuple[ServedModel, ...]:
        """Makes a version the current one of its model, atomically; returns the versions that the caller must close.

        Those are the previous one, unless `keep` is set, and another one with the same version.
        """
        with self._lock:
            versions = self._versions.get(served.card.name, ())
            replaced = [other for other in versions if other.key == served.key]
            kept = [other for other in versions[1:] if other.key != served.key]
            if versions and versions[0].key != served.key:
                (kept if keep else replaced).append(versions[0])
            self._versions = {**self._versions, served.card.name: (served, *kept)}
        return tuple(other for other in replaced if other is not served)

    def remove(self, model: str, version: str | None = None) -> tuple[ServedModel, ...]:
        """Removes one or all versions of a model; returns those that the caller must close.

        If the current version is removed, the highest remaining one becomes the current version.
        """
        with self._lock:
            versions = self._versions.get(model, ())
            removed = tuple(served for served in versions if version in (None, served.card.version))
            kept = [served for served in versions if served not in removed]
            if kept and kept[0] is not versions[0]:
                highest = max(kept, key=lambda served: version_rank(served.card.version))
                kept = [highest, *(served for served in kept if served is not highest)]
            others = {name: served for name, served in self._versions.items() if name != model}
            self._versions = {**others, model: tuple(kept)} if kept else others
        return removed

    def close(self) -> None:
        """Closes every served model."""
        for served in self.all:
            served.close()


class InFlight:
    """Counts the requests that were submitted and have no reply yet. Thread-safe."""

    def __init__(self) -> None:
        self.total = 0  # Requests of all models.
        self._by_model: Counter[str] = Counter()  # Zero counts are deleted, because clients choose the model names.
        self._condition = threading.Condition()
        self._on_crossing: Callable[[], None] = lambda: None

    def watch(self, on_crossing: Callable[[], None]) -> None:
        """Calls `on_crossing` whenever the worker becomes idle or busy; it must return quickly."""
        self._on_crossing = on_crossing

    def add(self, request: Request) -> None:
        """Counts a request until it is finished."""
        request.on_finished = partial(self._finished, request.model)
        with self._condition:
            self._by_model[request.model] += 1
            self.total += 1
            became_busy = self.total == 1
        if became_busy:
            self._on_crossing()

    def wait_until_idle(self, model: str, timeout_s: float) -> bool:
        """Waits until no request for a model is in flight; returns False after the timeout."""
        with self._condition:
            return self._condition.wait_for(lambda: model not in self._by_model, timeout_s)

    def _finished(self, model: str) -> None:
        with self._condition:
            self.total -= 1
            became_idle = not self.total
            self._by_model[model] -= 1
            if not self._by_model[model]:
                del self._by_model[model]
                self._condition.notify_all()
        if became_idle:
            self._on_crossing()


class LoadMeter:
    """Computes the load from the number of frames in flight, the admission queue and the batchers. Thread-safe."""

    def __init__(self, in_flight: InFlight, admission: Admission, served_models: ServedModels) -> None:
        self._in_flight = in_flight
        self._admission = admission
        self._served_models = served_models

    def loads(self) -> Mapping[str, WorkerLoad]:
        """The load of the current version of each model."""
        served = (each for each in self._served_models.all if self._served_models.is_current(each))
        return {each.card.name: self.load_of(each) for each in served}

    def load_after(self, request: Request) -> WorkerLoad | None:
        """The load of the requested model once this request has its reply; None if the model is not served."""
        served = self._served_models.get(request.model, request.header.version)
        return None if served is None else self.load_of(served, answered=request.is_in_flight)

    def load_of(self, served: ServedModel, *, answered: int = 0) -> WorkerLoad:
        """The load of one version of a model, without `answered` frames that still count as in flight.

        All waiting frames of the model count for each of its versions.
        """
        forecast = served.batcher.forecast(self._admission.depth_of(served.card.name))
        return WorkerLoad(
            queue=self._in_flight.total - answered,
            free=self._admission.free,
            wait_ms=_milliseconds(forecast.wait_ns),
            answer_ms=_milliseconds(forecast.answer_ns),
            spacing_ms=_milliseconds(forecast.spacing_ns),
        )


def _milliseconds(duration_ns: int) -> float:
    return min(duration_ns / 1e6, MAX_MS)

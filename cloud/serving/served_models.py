"""The models that a worker serves: each version has a batcher with its own threads."""

import threading
from collections.abc import Mapping

from cloud.serving.batching import Batcher
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MessageError
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

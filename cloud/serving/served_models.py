"""The models that a worker serves: each version has a batcher with its own threads."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from cloud.serving.batching import Batcher
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MessageError
from shared.models.repository import version_rank
from shared.runtime.threads import ThreadGroup

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


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The served models at one moment. It is replaced as a whole, so that readers need no lock."""

    by_key: Mapping[tuple[str, str], ServedModel] = field(default_factory=lambda: MappingProxyType({}))
    current: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # Version by model.

    def is_current(self, served: ServedModel) -> bool:
        return self.current.get(served.key[0]) == served.key[1]


class ServedModels:
    """The served models by name and version. Any thread may read it; changes take a lock."""

    def __init__(self) -> None:
        self._snapshot = _Snapshot()
        self._lock = threading.Lock()

    @property
    def all(self) -> tuple[ServedModel, ...]:
        """All versions, sorted by name; the current version of each model is the first."""
        snapshot = self._snapshot
        return tuple(
            sorted(snapshot.by_key.values(), key=lambda served: (served.key[0], not snapshot.is_current(served)))
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models, sorted."""
        return tuple(sorted(self._snapshot.current))

    def cards(self) -> tuple[ModelCard, ...]:
        """The cards of all versions, in the order of `all`."""
        return tuple(served.card for served in self.all)

    def is_current(self, served: ServedModel) -> bool:
        """True if this version serves frames that name no version."""
        return self._snapshot.is_current(served)

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
        snapshot = self._snapshot
        if version is None:
            version = snapshot.current.get(model)
        return None if version is None else snapshot.by_key.get((model, version))

    def set_current(self, served: ServedModel, *, keep: bool = False) -> tuple[ServedModel, ...]:
        """Makes a version the current one of its model, atomically; returns the versions that the caller must close.

        Those are the previous one, unless `keep` is set, and another one with the same version.
        """
        with self._lock:
            snapshot = self._snapshot
            model, version = served.key
            by_key = dict(snapshot.by_key)
            previous = snapshot.current.get(model)
            replaced = [by_key.pop(served.key, None)]
            if previous is not None and previous != version and not keep:
                replaced.append(by_key.pop((model, previous)))
            by_key[served.key] = served
            self._snapshot = _Snapshot(by_key, {**snapshot.current, model: version})
        return tuple(other for other in replaced if other not in (None, served))

    def remove(self, model: str, version: str | None = None) -> tuple[ServedModel, ...]:
        """Removes one or all versions of a model; returns those that the caller must close.

        If the current version is removed, the highest remaining one becomes the current version.
        """
        with self._lock:
            snapshot = self._snapshot
            removed = [
                served for key, served in snapshot.by_key.items() if key[0] == model and version in (None, key[1])
            ]
            by_key = {key: served for key, served in snapshot.by_key.items() if served not in removed}
            current = dict(snapshot.current)
            if (model, current.get(model)) not in by_key:
                current.pop(model, None)
                kept = [key[1] for key in by_key if key[0] == model]
                if kept:
                    current[model] = max(kept, key=version_rank)
            self._snapshot = _Snapshot(by_key, current)
        return tuple(removed)

    def close(self) -> None:
        """Closes every served model."""
        for served in self._snapshot.by_key.values():
            served.close()

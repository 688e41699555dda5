"""Serving: the lanes that frames are inferred on, each a loaded version of a model with a batcher of its own."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from cloud.models.model import Model
from cloud.models.repository import version_rank
from cloud.serving.batching import Batcher
from shared.encoding.msgpack_reader import MessageError
from shared.messages.model_card import ModelCard
from shared.runtime.threads import ThreadGroup

_DRAIN_S = 30.0


class ServedModel:
    """A loaded version of a model, and the batcher that alone calls its engine, in threads of its own."""

    def __init__(self, model: Model, batcher: Batcher, *, owns_model: bool = False, drain_s: float = _DRAIN_S) -> None:
        """`owns_model`: whether the model is closed with the lane; otherwise that is up to whoever opened it.

        `drain_s`: how long closing waits for a batch in the engine.
        """
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
        """Model and version."""
        return (self.card.name, self.card.version)

    def start(self, threads: ThreadGroup) -> None:
        """Infer from now on."""
        name = f"engine-{self.card.name}-{self.card.version}"
        self._threads = [threads.start(f"{name}-{i}", self.batcher.run) for i in range(self.model.instances)]

    def close(self) -> bool:
        """Take no more frames, hand on those it holds, and free the model; whether that was done in time.

        A frame that found no place here before finds the next lane. An engine that hangs keeps its model: it cannot be
        taken from under it.
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
class _Table:
    """What is served at a moment. Replaced as a whole, so that whoever reads it needs no lock."""

    lanes: Mapping[tuple[str, str], ServedModel] = field(default_factory=lambda: MappingProxyType({}))
    current: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # Version by model.


class ServedModels:
    """The lanes of a worker, by model and version. Read by any thread, changed by one at a time."""

    def __init__(self) -> None:
        self._table = _Table()
        self._lock = threading.Lock()

    @property
    def lanes(self) -> tuple[ServedModel, ...]:
        """All of them; of each model the current version first."""
        table = self._table
        return tuple(sorted(table.lanes.values(), key=lambda lane: (lane.key[0], not _is_current(table, lane))))

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models served."""
        return tuple(sorted(self._table.current))

    def cards(self) -> tuple[ModelCard, ...]:
        """What is served; of each model the current version first."""
        return tuple(lane.card for lane in self.lanes)

    def is_current(self, lane: ServedModel) -> bool:
        """Whether a lane answers frames that name no version."""
        return _is_current(self._table, lane)

    def find(self, model: str, version: str | None) -> ServedModel:
        """The lane of a model's version; of its current one where none is named.

        Raises:
            MessageError: it is not served; the message names what is.
        """
        lane = self.lane(model, version)
        if lane is None:
            wanted = model if version is None else f"{model} version {version}"
            served = ", ".join(f"{card.name} version {card.version}" for card in self.cards())
            raise MessageError(f"{wanted} is not served here: ask for {served or 'another worker'}")
        return lane

    def lane(self, model: str, version: str | None) -> ServedModel | None:
        """As `find`; None where it is not served."""
        table = self._table
        if version is None:
            version = table.current.get(model)
        return None if version is None else table.lanes.get((model, version))

    def place(self, lane: ServedModel, *, keep: bool = False) -> tuple[ServedModel, ...]:
        """Make a lane its model's current one, in one stroke for whoever asks; returns the lanes to be closed.

        Those are the one that was current, unless it is to be kept for frames that name its version, and one of the
        same version.
        """
        with self._lock:
            table = self._table
            model, version = lane.key
            lanes = dict(table.lanes)
            was_current = table.current.get(model)
            left = [lanes.pop(lane.key, None)]
            if was_current is not None and was_current != version and not keep:
                left.append(lanes.pop((model, was_current)))
            lanes[lane.key] = lane
            self._table = _Table(lanes, {**table.current, model: version})
        return tuple(other for other in left if other not in (None, lane))

    def remove(self, model: str, version: str | None = None) -> tuple[ServedModel, ...]:
        """Take a version, or all of a model, out of service; returns the lanes to be closed.

        Where the current version goes and others were kept, the highest of those is current.
        """
        with self._lock:
            table = self._table
            left = [lane for key, lane in table.lanes.items() if key[0] == model and version in (None, key[1])]
            lanes = {key: lane for key, lane in table.lanes.items() if lane not in left}
            current = dict(table.current)
            if (model, current.get(model)) not in lanes:
                current.pop(model, None)
                kept = [key[1] for key in lanes if key[0] == model]
                if kept:
                    current[model] = max(kept, key=version_rank)
            self._table = _Table(lanes, current)
        return tuple(left)

    def close(self) -> None:
        """Have every lane hand on what it holds."""
        for lane in self._table.lanes.values():
            lane.close()


def _is_current(table: _Table, lane: ServedModel) -> bool:
    return table.current.get(lane.key[0]) == lane.key[1]

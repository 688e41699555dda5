"""The exchange: loads and unloads models while frames flow, so that none of them is lost or refused meanwhile."""

from collections.abc import Callable, Collection
from time import perf_counter_ns
from typing import Protocol

from cloud.models.loader import Loader
from cloud.models.model import Model
from cloud.serving.served_models import Lane, Serving
from shared.encoding.msgpack_reader import MessageError
from shared.errors import SkylaneError
from shared.logs import get_logger
from shared.messages.model_card import ModelCard

OpenLane = Callable[[Model], Lane]  # Builds a model's lane and starts it.

_NS_IN_MS = 1_000_000
_LOG = get_logger("cloud")


class ModelSwapError(SkylaneError):
    """A model cannot be loaded or unloaded now."""


class Door(Protocol):
    """Where frames come in: it must know which models are served."""

    def check(self, cards: Collection[ModelCard]) -> None:
        """Whether these models can be told of together."""

    def admit(self, model: str) -> None:
        """Take a model's frames from now on."""

    def dismiss(self, model: str) -> None:
        """Take a model's frames no more; returns when those that came have been answered."""

    def announce(self) -> None:
        """Tell what is served now."""


class Exchange:
    """Changes what is served. Called by one thread at a time, which is not one that frames pass."""

    def __init__(
        self,
        serving: Serving,
        door: Door,
        open_lane: OpenLane,
        loader: Loader | None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`loader`: None where the worker has no repository, and serves what it was given.

        `is_stopping`: whether the worker ends, so that a model that is still being loaded comes too late.
        """
        self._serving = serving
        self._door = door
        self._open_lane = open_lane
        self._loader = loader
        self._is_stopping = is_stopping

    @property
    def loader(self) -> Loader | None:
        """What opens models."""
        return self._loader

    def load(self, name: str, version: str | None = None, *, keep: bool = False) -> tuple[Lane, float]:
        """Load a model beside what is served, warm it up, and have it take over; what was current is then unloaded.

        A version that is served already, of the same file, becomes the current one. `keep`: leave the version that was
        current loaded, for frames that name it. Returns the lane that is current now, and the milliseconds until then.

        Raises:
            SkylaneError: it cannot be loaded; what is served is as it was.
        """
        begun_ns = perf_counter_ns()
        was_current = self._serving.lane(name, None)
        lane = self._served_already(name, version)
        if lane is None:
            lane = self._opened(name, version)
        is_new = name not in self._serving.models
        left = self._serving.place(lane, keep=keep)
        if is_new:
            try:
                self._door.admit(name)
            except SkylaneError:
                self._retire(self._serving.remove(name))
                raise
        self._door.announce()
        took_ms = (perf_counter_ns() - begun_ns) / _NS_IN_MS
        if was_current is not None and was_current is not lane:
            _LOG.info("model swapped", model=name, version=lane.key[1], previous=was_current.key[1], kept=keep)
        self._retire(left)
        return lane, took_ms

    def unload(self, name: str, version: str | None = None) -> tuple[Lane, ...]:
        """Answer what is under way with a model, or one version of it, and free it; returns the lanes that it had.

        Raises:
            ModelSwapError: it is not served.
        """
        try:
            self._serving.find(name, version)
        except MessageError as error:
            raise ModelSwapError(f"{error}; there is nothing to unload") from error
        others = [lane for lane in self._serving.lanes if lane.card.name == name and version not in (None, lane.key[1])]
        if not others:
            self._door.dismiss(name)
        left = self._serving.remove(name, version)
        self._door.announce()
        self._retire(left)
        return left

    def _served_already(self, name: str, version: str | None) -> Lane | None:
        """The lane of the version that would be loaded, if it is that of the same file."""
        if self._loader is None:
            return None
        card = self._loader.repository.card(name, version)
        lane = self._serving.lane(name, card.version)
        return lane if lane is not None and lane.card.sha256 == card.sha256 else None

    def _opened(self, name: str, version: str | None) -> Lane:
        if self._loader is None:
            raise ModelSwapError("this worker has no repository: it serves what it was started with")
        self._door.check((*self._serving.cards(), self._loader.repository.card(name, version)))
        model = self._loader.load(name, version)
        if self._is_stopping():
            model.close()
            raise ModelSwapError("the worker is stopping")
        return self._open_lane(model)

    def _retire(self, lanes: tuple[Lane, ...]) -> None:
        for lane in lanes:
            if not lane.close():
                raise ModelSwapError(
                    f"{lane.card.name} version {lane.card.version} takes no more frames, but its engine hangs "
                    "and cannot be freed: restart the worker"
                )
            _LOG.info("model unloaded", model=lane.card.name, version=lane.card.version)

"""Loading and unloading of models while the worker serves frames, without losing or refusing any of them."""

from collections.abc import Callable, Collection
from time import perf_counter_ns, sleep

from cloud.frontend import Frontend
from cloud.models.loader import ModelLoader
from cloud.serving.served_models import InFlight, ServedModel, ServedModels
from shared.errors import SkylaneError
from shared.inference.model import Model
from shared.logs import get_logger
from shared.messages.msgpack_reader import MessageError
from shared.models.repository import StoredModel

_DRAIN_S = 10.0  # The longest wait for frames in flight before a model is unloaded.
_LATE_FRAMES_S = 0.5  # Time in which frames arrive that vehicles sent to this worker before they knew of the change.
_NS_IN_MS = 1_000_000
_LOG = get_logger("cloud")


class ModelSwapError(SkylaneError):
    """A model cannot be loaded or unloaded now."""


class ModelSwap:
    """Changes which models are served. Only one thread at a time may call it, and none that handles frames."""

    def __init__(
        self,
        served_models: ServedModels,
        frontends: Collection[Frontend],
        in_flight: InFlight,
        start_serving: Callable[[Model], ServedModel],
        *,
        loader: ModelLoader | None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`loader` is None for a worker without a repository. `is_stopping` cancels a load that ends too late."""
        self.loader = loader
        self._served_models = served_models
        self._frontends = frontends
        self._in_flight = in_flight
        self._start_serving = start_serving
        self._is_stopping = is_stopping

    def load(self, name: str, version: str | None = None, *, keep: bool = False) -> tuple[ServedModel, float]:
        """Loads and warms up a model, makes it the current version, and unloads the previous one.

        A version of the same file that is served already is not loaded again.

        Args:
            name: The model.
            version: The version, by default the highest one.
            keep: Whether the previous version stays loaded, for frames that name it.

        Returns:
            The served model, and the milliseconds until it was current.

        Raises:
            SkylaneError: the model cannot be loaded; the served models are unchanged.
        """
        start_ns = perf_counter_ns()
        if self.loader is None:
            raise ModelSwapError("this worker has no repository: it serves only the models it was started with")
        stored = self.loader.find(name, version)
        previous = self._served_models.get(name, None)
        served = self._served_models.get(name, stored.version)
        if served is None or served.card.sha256 != stored.manifest.sha256:
            served = self._open(self.loader, stored)
        is_new = name not in self._served_models.names
        replaced = self._served_models.set_current(served, keep=keep)
        if is_new:
            try:
                for frontend in self._frontends:
                    frontend.add_model(name)
            except SkylaneError:
                self._retire(self._served_models.remove(name))
                raise
        self._announce()
        took_ms = (perf_counter_ns() - start_ns) / _NS_IN_MS
        if previous is not None and previous is not served:
            _LOG.info("model swapped", model=name, version=served.key[1], previous=previous.key[1], kept=keep)
        self._retire(replaced)
        return served, took_ms

    def unload(self, name: str, version: str | None = None) -> tuple[ServedModel, ...]:
        """Unloads one or all versions of a model after the accepted frames; returns the unloaded versions.

        Raises:
            ModelSwapError: it is not served.
        """
        try:
            self._served_models.find(name, version)
        except MessageError as error:
            raise ModelSwapError(f"{error}; there is nothing to unload") from error
        if all(version in (None, other.key[1]) for other in self._served_models.all if other.card.name == name):
            for frontend in self._frontends:
                frontend.remove_model(name)
            sleep(_LATE_FRAMES_S)
            self._in_flight.wait_until_idle(name, _DRAIN_S)
        removed = self._served_models.remove(name, version)
        self._announce()
        self._retire(removed)
        return removed

    def _announce(self) -> None:
        for frontend in self._frontends:
            frontend.announce()

    def _open(self, loader: ModelLoader, stored: StoredModel) -> ServedModel:
        cards = (*self._served_models.cards(), stored.card())
        for frontend in self._frontends:
            frontend.check_cards(cards)
        model = loader.load(stored)
        if self._is_stopping():
            model.close()
            raise ModelSwapError("the worker is stopping")
        return self._start_serving(model)

    def _retire(self, replaced: tuple[ServedModel, ...]) -> None:
        for served in replaced:
            if not served.close():
                raise ModelSwapError(
                    f"{served.card.name} version {served.card.version} receives no more frames, but its engine hangs "
                    "and cannot be freed: restart the worker"
                )
            _LOG.info("model unloaded", model=served.card.name, version=served.card.version)

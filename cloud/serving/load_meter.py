"""The load of the worker by model, as replies, load reports and metrics show it."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from cloud.serving.admission import Admission
from cloud.serving.request import Request
from cloud.serving.served_models import ServedModel, ServedModels
from shared.messages.load import WorkerLoad
from shared.messages.msgpack_reader import MAX_MS


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

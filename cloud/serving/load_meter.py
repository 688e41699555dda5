"""The load of the worker by model, as replies, load reports and metrics show it."""

from collections.abc import Mapping

from cloud.serving.admission import Admission
from cloud.serving.request import Request
from cloud.serving.served_models import ServedModel, ServedModels
from cloud.serving.submission import InFlight
from shared.messages.field_types import MAX_MS
from shared.messages.load import WorkerLoad


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

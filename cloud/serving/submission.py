"""The single entry for frames: every frontend (MQTT, gRPC, HTTP) submits its requests here."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from cloud.serving.admission import Admission
from cloud.serving.circuit_breaker import CircuitBreaker
from cloud.serving.request import EXPIRED_IN_QUEUE, Refusal, Request
from shared.messages.frame import Status


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


class Submission:
    """Checks each request, admits it to the queue and counts it until it has its reply. Thread-safe."""

    def __init__(self, admission: Admission, circuit_breaker: CircuitBreaker, in_flight: InFlight) -> None:
        self.admission = admission
        self._circuit_breaker = circuit_breaker
        self._in_flight = in_flight

    def submit(self, request: Request) -> None:
        """Admits a request to the queue, or calls its `refuse`.

        Requests that the queue drops to make room are refused too, each by its own `refuse`.
        """
        self._in_flight.add(request)
        if refusal := self._refusal(request):
            request.refuse(request, refusal)
            return
        for dropped in self.admission.offer(request):
            overloaded = Refusal(Status.OVERLOADED, f"{self.admission.depth} frames are waiting")
            dropped.refuse(dropped, EXPIRED_IN_QUEUE if dropped.deadline.is_expired() else overloaded)

    def _refusal(self, request: Request) -> Refusal | None:
        if reason := self._circuit_breaker.reason(request.vehicle):
            return Refusal(Status.REJECTED, reason)
        return EXPIRED_IN_QUEUE if request.deadline.is_expired() else None

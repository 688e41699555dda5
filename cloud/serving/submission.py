"""The single entry for frames: every frontend (MQTT, gRPC, HTTP) submits its requests here."""

import threading
from collections import Counter
from functools import partial

from cloud.serving.admission import Admission
from cloud.serving.circuit_breaker import CircuitBreaker
from cloud.serving.request import EXPIRED_IN_QUEUE, Refusal, Request
from shared.messages.frame import Status


class Submission:
    """Checks each request, admits it to the queue and counts it until it has its reply. Thread-safe."""

    def __init__(self, admission: Admission, circuit_breaker: CircuitBreaker) -> None:
        self.admission = admission
        self._circuit_breaker = circuit_breaker
        self._in_flight: Counter[str] = Counter()  # Zero counts are deleted, because clients choose the model names.
        self._condition = threading.Condition()

    def submit(self, request: Request) -> None:
        """Admits a request to the queue, or calls its `refuse`.

        Requests that the queue drops to make room are refused too, each by its own `refuse`.
        """
        with self._condition:
            self._in_flight[request.model] += 1
        request.on_finished = partial(self._finished, request.model)
        if refusal := self._refusal(request):
            request.refuse(request, refusal)
            return
        for dropped in self.admission.offer(request):
            overloaded = Refusal(Status.OVERLOADED, f"{self.admission.depth} frames are waiting")
            dropped.refuse(dropped, EXPIRED_IN_QUEUE if dropped.deadline.is_expired() else overloaded)

    def wait_until_idle(self, model: str, timeout_s: float) -> bool:
        """Waits until no request for a model is in flight; returns False after the timeout."""
        with self._condition:
            return self._condition.wait_for(lambda: model not in self._in_flight, timeout_s)

    def _refusal(self, request: Request) -> Refusal | None:
        if reason := self._circuit_breaker.reason(request.vehicle):
            return Refusal(Status.REJECTED, reason)
        return EXPIRED_IN_QUEUE if request.deadline.is_expired() else None

    def _finished(self, model: str) -> None:
        with self._condition:
            self._in_flight[model] -= 1
            if not self._in_flight[model]:
                del self._in_flight[model]
                self._condition.notify_all()

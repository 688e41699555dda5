"""Batching: gathers decoded frames of one model and runs the engine."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cloud.engines.engine import UnavailableError
from cloud.isolation.process import ProcessLostError
from cloud.models.model import Model
from cloud.serving.admission import Admission
from cloud.serving.circuit_breaker import CircuitBreaker
from cloud.serving.latency_estimator import BatchLatencyEstimator, Estimate
from cloud.serving.replies import Replier
from cloud.serving.request import CLIENT_GONE, Request
from shared import clock
from shared.encoding.field_types import MAX_NS
from shared.errors import SkylaneError
from shared.messages.frame import Status
from shared.stages import Stage

HandOn = Callable[[Request, Model], None]

_LEEWAY = 1.1  # Of the time that a batch takes, where one more joins it: nothing is gained by a close shave.
_WAKING_NS = 2_000_000


class UnexpectedError(SkylaneError):
    """An exception of an engine that its interface does not name."""


class _Running(NamedTuple):
    """A batch at the engine."""

    begun_ns: int
    size: int  # Frames.


class Batcher:
    """The only caller of its model's engine, which it has run as many batches at a time as the model takes. Frames wait decoded, so that the engine never waits for a decoder.

    No more of them wait than go into a batch, or are decoded at a time: what waits here has left the fair queue. Where
    budgets cut batches short, so few wait, and one more after every batch that was not cut. Whoever decodes a frame has
    reserved a place for it before, and fills it or gives it back.

    A frame on which the model fails is tried once more, alone, then answered `failed`; those beside it lose nothing.
    Where the model could not be asked at all, the whole batch is answered so at once. What never comes back from the
    engine, or takes the process along, only `cloud.isolation` can survive.
    """

    def __init__(
        self,
        model: Model,
        replier: Replier,
        admission: Admission,
        hand_on: HandOn,
        *,
        decoders: int = 1,
        max_wait_ms: float = 0.0,
        finish: HandOn | None = None,
        finishing: Estimate | None = None,
        circuit_breaker: CircuitBreaker | None = None,
    ) -> None:
        """`hand_on` gets each frame with what the model gave for it, and the model.

        `finish` does in this thread what `hand_on` has another one do: to wake that one takes longer than the work, so a
        frame behind which no other waits is finished at once.

        `admission` is woken when a place gets free. `max_wait_ms`: that a batch may wait for more frames. `finishing`:
        how long it takes from there to the answer, kept by whoever does it. `circuit_breaker`: told of frames that cost an
        engine its process, and asked whose are not worth the risk.
        """
        self._model = model
        self._replier = replier
        self._admission = admission
        self._hand_on = hand_on
        self._finish = finish or hand_on
        self._max_size = model.max_batch_size
        self._decoders = decoders
        self._fitted = self._max_size  # Frames that a batch may hold and end in time, as it went lately.
        self._max_wait_s = max_wait_ms / 1e3
        self._condition = threading.Condition()
        self._decoded: deque[Request] = deque()
        self._reserved = 0
        self._closed = False
        self._abandoned = False
        self._had_company = True
        self._places = model.instances  # Batches that may be at the engine at a time, and
        self._running: dict[int, _Running] = {}  # those that are, by thread.
        self._decoding = Estimate()
        self._inference = BatchLatencyEstimator(self._max_size)
        self._finishing = finishing or Estimate()
        self._hold_off = circuit_breaker or CircuitBreaker()

    @property
    def expected_latency_ns(self) -> int:
        """How long a frame that comes now takes until it is answered, as far as can be told."""
        batches, ahead = divmod(self._reserved + len(self._decoded), self._max_size)
        queued_ns = -(-batches // self._places) * self._inference.ns(self._max_size)
        return max(self._decoding.ns, self._busy_ns()) + queued_ns + self._ends_after_ns(ahead + 1)

    def reserve(self) -> bool:
        """Take a place for a frame that is about to be decoded; False where none is free, or no more are taken."""
        with self._condition:
            taken = self._reserved + len(self._decoded)
            if self._closed or (taken >= max(self._fitted, self._decoders) and not self._abandoned):
                return False
            self._reserved += 1
        return True

    def put(self, request: Request) -> None:
        """Fill a reserved place with a decoded frame."""
        with self._condition:
            self._fill(request)
            self._condition.notify_all()

    def release(self) -> None:
        """Give a reserved place back."""
        with self._condition:
            self._reserved -= 1
            self._condition.notify_all()
        self._admission.wake()

    def close(self) -> None:
        """Give no more places; what is in them is still inferred."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def run(self) -> None:
        """Infer until closed; the body of an engine thread, of which there are as many as batches at a time."""
        try:
            while batch := self._gather():
                self._admission.wake()
                self._infer(batch)
        finally:
            # An engine thread that dies of a bug keeps no decoder waiting: what is put then is forgotten.
            self._abandoned = True
            self._admission.wake()

    @property
    def _has_place(self) -> bool:
        """Whether one more batch may be at the engine."""
        return len(self._running) < self._places

    @property
    def _is_over(self) -> bool:
        """Whether no more frames can come."""
        return self._closed and not self._reserved

    def _fill(self, request: Request) -> None:
        """Fill a reserved place; call it with the lock."""
        self._decoding.add(request.times[Stage.DECODED] - request.times[Stage.DEQUEUED])
        self._reserved -= 1
        if not self._abandoned:
            self._decoded.append(request)

    def _begun(self, batch: list[Request]) -> list[Request]:
        """The same, from now on at the engine by this thread; call it with the lock."""
        self._running[threading.get_ident()] = _Running(clock.now_ns(), len(batch))
        self._had_company = len(batch) > 1
        return batch

    def _busy_ns(self) -> int:
        """How long until there is a place at the engine, as far as can be told."""
        running = list(self._running.values())
        if len(running) < self._places:
            return 0
        ends_ns = min(each.begun_ns + self._inference.ns(each.size) for each in running)
        return max(0, ends_ns - clock.now_ns())

    def _gather(self) -> list[Request]:
        """The frames that are there, or come within the wait; none once closed and empty."""
        batch: list[Request] = []
        with self._condition:
            self._running.pop(threading.get_ident(), None)
            while not batch:  # Another thread may take those with which this one waits for more.
                self._condition.wait_for(lambda: (self._decoded and self._has_place) or self._is_over)
                if not self._decoded:
                    return batch
                until_ns = clock.now_ns() + round(self._max_wait_s * 1e9)
                while self._decoded and len(self._decoded) < self._max_size and self._may_more_come():
                    wait_ns = min([until_ns, *self._latest_starts_ns()]) - clock.now_ns()
                    if wait_ns <= 0:
                        break
                    self._condition.wait(wait_ns / 1e9)
                batch = self._fitting() if self._has_place else batch
            return self._begun(batch)

    def _fitting(self) -> list[Request]:
        """The first frames, as many as end together in time; among them such as would not even end alone."""
        batch: list[Request] = []
        soonest_ns = MAX_NS  # That a budget in the batch ends, of one that can be kept.
        while self._decoded and len(batch) < self._max_size:
            ends_ns = self._decoded[0].ends_ns
            if ends_ns is not None and ends_ns >= clock.now_ns() + self._ends_after_ns(1):
                soonest_ns = min(soonest_ns, ends_ns)
            if batch and clock.now_ns() + self._with_leeway_ns(len(batch) + 1) > soonest_ns:
                self._fitted = len(batch)
                return batch
            batch.append(self._decoded.popleft())
        if len(batch) >= self._fitted:
            self._fitted = min(self._max_size, len(batch) + 1)
        return batch

    def _ends_after_ns(self, size: int) -> int:
        """How long after its beginning a batch of so many frames is answered."""
        return self._inference.ns(size) + self._finishing.ns

    def _with_leeway_ns(self, size: int) -> int:
        return round(_LEEWAY * self._ends_after_ns(size)) + _WAKING_NS

    def _may_more_come(self) -> bool:
        """Whether a wait can pay: frames are under way, or the last batch was one of several.

        A lone vehicle with one frame in flight then waits in vain once, and no more.
        """
        return bool(self._reserved or (not self._closed and (self._admission.depth or self._had_company)))

    def _latest_starts_ns(self) -> list[int]:
        """When each frame that waits must be begun with, so that none expires for want of company."""
        expected_latency_ns = self._with_leeway_ns(len(self._decoded) + 1)
        return [request.ends_ns - expected_latency_ns for request in self._decoded if request.ends_ns is not None]

    def _infer(self, batch: Sequence[Request]) -> None:
        live = [request for request in batch if self._is_worth_it(request)]
        error = self._try(live) if live else None
        if error is None:
            return
        if isinstance(error, UnavailableError):
            for request in live:
                self._replier.refuse(request, Status.FAILED, str(error))
            return
        for request in live:
            if self._is_worth_it(request) and (error := self._try([request])):
                if isinstance(error, ProcessLostError):
                    self._hold_off.strike(request.vehicle)
                self._replier.refuse(request, Status.FAILED, f"poison: {error}")

    def _is_worth_it(self, request: Request) -> bool:
        """Whether a frame is worth the engine's time; refuses it where it is not."""
        if held := self._hold_off.reason(request.vehicle):
            self._replier.refuse(request, Status.REJECTED, held)
        elif not request.is_wanted():
            self._replier.refuse(request, *CLIENT_GONE)
        elif request.is_expired:
            self._replier.refuse(request, Status.EXPIRED, "its budget ended before inference")
        elif not request.can_finish_in(lambda: self._ends_after_ns(1)):
            self._replier.refuse(request, Status.EXPIRED, "its inference would end after its budget")
        else:
            return True
        return False

    def _try(self, batch: Sequence[Request]) -> SkylaneError | None:
        """Infer a batch and hand its frames on, or tell why the model failed on it."""
        for request in batch:
            request.batch_size = len(batch)
            request.stamp(Stage.BATCHED)
        try:
            # One frame is a view; only a batch has to be copied together.
            pictures = batch[0].picture[None] if len(batch) == 1 else np.stack([request.picture for request in batch])
            outputs = self._model.infer(pictures)
        except SkylaneError as error:
            return error
        except Exception as error:  # noqa: BLE001  The batch fails, the worker goes on.
            self._replier.errors.record("inference", error)
            return UnexpectedError(f"internal error in inference ({type(error).__name__}): see the worker's log")
        for request in batch:
            request.stamp(Stage.INFERRED)
            request.picture = None
        took_ns = batch[0].times[Stage.INFERRED] - batch[0].times[Stage.BATCHED]
        self._inference.add(len(batch), took_ns)
        for place, request in enumerate(batch):
            request.outputs = {head: values[place] for head, values in outputs.items()}
            is_the_last = request is batch[-1] and not (self._decoded or self._reserved)
            (self._finish if is_the_last else self._hand_on)(request, self._model)
        return None

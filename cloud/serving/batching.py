"""Batching: collects decoded frames of one model and runs them through the engine.

A frame that would not meet its deadline is refused. After some refusals in a row one is inferred all the same, as a probe.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cloud.isolation.engine import ProcessLostError
from cloud.serving.admission import Admission, CircuitBreaker
from cloud.serving.latency_estimator import BatchLatencyEstimator, LatencyEstimator
from cloud.serving.replies import Postprocessor, Replier
from cloud.serving.request import EXPIRED_BEFORE_INFERENCE, TOO_LATE, Request
from shared import clock
from shared.clock import Deadline
from shared.errors import SkylaneError
from shared.inference.engine import ModelUnavailableError
from shared.inference.model import Model
from shared.messages.frame import Status
from shared.stages import Stage

_SAFETY_FACTOR = 1.1  # Applied to the estimated latency before one more frame joins a batch.
_WAKE_UP_NS = 2_000_000
_PROBE_AFTER = 3  # Frames that are refused in a row before one is inferred to measure anew.


class UnexpectedError(SkylaneError):
    """The engine raised an exception that its interface does not name."""


class Forecast(NamedTuple):
    """Expected times of a frame that arrives now, and of those behind it."""

    wait_ns: int  # Until an instance of the model is free for the frame.
    answer_ns: int  # From then until its reply.
    spacing_ns: int  # Time by which each further frame lengthens the wait.


class _RunningBatch(NamedTuple):
    """A batch in the engine."""

    start_ns: int
    size: int


class Batcher:
    """Runs decoded frames in batches through the engine of its model, of which it is the only caller.

    It runs as many batches at a time as the model has instances. Decoded frames have left the fair admission queue, so
    no more of them wait than fit into a batch or are decoded at the same time. Where deadlines cut batches short, fewer
    wait, and one more after every batch that was not cut. A decoder reserves a slot before it decodes a frame, and then
    fills or releases it.

    A frame on which the model fails is tried once more, alone, then refused as `failed`; the other frames of the batch
    get their results. If the engine is unavailable, the whole batch is refused at once. Only `cloud.isolation` protects
    against an engine that hangs or ends its process.
    """

    def __init__(
        self,
        model: Model,
        replier: Replier,
        admission: Admission,
        postprocessor: Postprocessor,
        *,
        decoders: int = 1,
        max_wait_ms: float = 0.0,
        circuit_breaker: CircuitBreaker | None = None,
    ) -> None:
        """Prepares the batcher.

        Args:
            model: The model to run.
            replier: Refuses frames.
            admission: The queue, which is woken when a slot becomes free.
            postprocessor: Receives the inferred frames.
            decoders: Number of decoding threads.
            max_wait_ms: The longest time that a batch waits for more frames.
            circuit_breaker: Counts the frames that ended the engine's process, and blocks their vehicles.
        """
        self._model = model
        self._replier = replier
        self._admission = admission
        self._postprocessor = postprocessor
        self._max_size = model.max_batch_size
        self._decoders = decoders
        self._fitting_size = self._max_size  # Frames that recently fitted into a batch before the first deadline.
        self.max_wait_ns = round(max_wait_ms * 1e6)
        self._condition = threading.Condition()
        self._decoded: deque[Request] = deque()
        self._reserved = 0
        self._closed = False
        self._abandoned = False
        self._last_had_company = True  # True if the last batch had several frames.
        self._refused_in_row = 0  # Frames refused by the estimate since the last inference.
        self._instances = model.instances
        self._running: dict[int, _RunningBatch] = {}  # Batches in the engine by thread.
        self._decoding = LatencyEstimator()
        self.inference_latency = BatchLatencyEstimator(self._max_size)
        self._circuit_breaker = circuit_breaker or CircuitBreaker()

    def can_meet(self, deadline: Deadline) -> bool:
        """Estimates if a frame that is decoded now gets its reply before the deadline.

        While other frames wait, the estimate is rarely too short, because an inference in vain costs them time. If none
        waits, it costs nothing to try: the estimate is the shortest recent time. It can still be wrong, if the worker
        was slow until now; so after a few refusals in a row (`count_refusal`) the next frame is inferred whatever the
        estimate.
        """
        batches, ahead = divmod(self._reserved + len(self._decoded), self._max_size)
        others_wait = self._others_wait
        latency_ns = self.inference_latency.ns if others_wait else self._typical_ns
        busy_ns = [max(0, each_ns) for each_ns in self._remaining_ns(latency_ns)]
        wait_ns = self._free_after_ns(batches, busy_ns, self.inference_latency.ns(self._max_size))
        decoding_ns = self._decoding.ns if others_wait else self._decoding.fastest_ns
        return self._ends_in_time(deadline, max(decoding_ns, wait_ns), ahead + 1, others_wait=others_wait)

    def count_refusal(self) -> None:
        """Counts a frame that is refused because `can_meet` is False."""
        self._refused_in_row += not self._others_wait

    def forecast(self, waiting: int) -> Forecast:
        """Estimates the times of a frame of this model that arrives behind `waiting` frames in the admission queue.

        In contrast to those of `can_meet`, the estimates are typical values.
        """
        size = self._fitting_size  # Of the batches while frames wait.
        # Batches follow one another as fast as the slowest of decoding, inference and postprocessing allows.
        pace_ns = max(self._decoding.median_ns // self._decoders, self._postprocessor.spacing_ns)
        full_ns = max(self._typical_ns(size), pace_ns * size * self._instances)
        with self._condition:
            ahead = waiting + self._reserved + len(self._decoded)
            # A batch that takes longer than usual, such as one that hangs, is expected to take as much longer again.
            busy_ns = [abs(each_ns) for each_ns in self._remaining_ns(self._typical_ns)]
        wait_ns = self._free_after_ns(ahead // size, busy_ns, full_ns)
        around_ns = self._decoding.median_ns + self._postprocessor.expected_ns
        answer_ns = self._typical_ns(min(size, ahead + 1)) + around_ns
        return Forecast(wait_ns, answer_ns, full_ns // (size * self._instances))

    def reserve(self) -> bool:
        """Reserves a slot for a frame that is about to be decoded; returns False if none is free or it is closed."""
        with self._condition:
            taken = self._reserved + len(self._decoded)
            if self._closed or (taken >= max(self._fitting_size, self._decoders) and not self._abandoned):
                return False
            self._reserved += 1
        return True

    def put(self, request: Request) -> None:
        """Fills a reserved slot with a decoded frame."""
        with self._condition:
            self._decoding.add(request.times[Stage.DECODED] - request.times[Stage.DEQUEUED])
            self._reserved -= 1
            if not self._abandoned:
                self._decoded.append(request)
            self._condition.notify_all()

    def release(self) -> None:
        """Releases a reserved slot."""
        with self._condition:
            self._reserved -= 1
            self._condition.notify_all()
        self._admission.wake()

    def close(self) -> None:
        """Accepts no more reservations; frames with a slot are still inferred."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._admission.wake()  # A frame that waits for this batcher is chosen again, for the next version of its model.

    def run(self) -> None:
        """Infers until closed; the body of an engine thread, one for each instance."""
        try:
            while batch := self._gather():
                self._admission.wake()
                self._infer(batch)
        finally:
            # If a bug ends the thread, decoders must not block: frames that arrive later are dropped.
            self._abandoned = True
            self._admission.wake()

    @property
    def _others_wait(self) -> bool:
        """True if frames wait other than the first one in the queue."""
        return bool(self._reserved or self._decoded or self._admission.depth > 1)

    @property
    def _has_idle_instance(self) -> bool:
        return len(self._running) < self._instances

    @property
    def _is_finished(self) -> bool:
        """True if no more frames can arrive."""
        return self._closed and not self._reserved

    def _remaining_ns(self, latency_ns: Callable[[int], int]) -> list[int]:
        """The estimated time left of each running batch; negative if it takes longer than estimated."""
        now_ns = clock.now_ns()
        return [batch.start_ns + latency_ns(batch.size) - now_ns for batch in list(self._running.values())]

    def _free_after_ns(self, batches: int, busy_ns: Sequence[int], full_ns: int) -> int:
        """The estimated time until an instance is free, once `batches` more batches have started.

        `busy_ns` is the time left of each running batch, and `full_ns` that of each further one.
        """
        free_ns = sorted([*busy_ns, *[0] * (self._instances - len(busy_ns))])
        # Batches of equal length start on the instances in turn. An instance that hangs takes no turn.
        turns = [each_ns for each_ns in free_ns if each_ns <= full_ns] or free_ns[:1]
        rounds, turn = divmod(batches, len(turns))
        return turns[turn] + rounds * full_ns

    def _typical_ns(self, size: int) -> int:
        """The typical latency of a batch of this size; without recent measurements, that of the warm-up."""
        return self.inference_latency.median_ns(size) or round((self._model.card.warm_ms or 0.0) * 1e6) * size

    def _gather(self) -> list[Request]:
        """Waits for the frames of the next batch; empty once closed and finished."""
        batch: list[Request] = []
        with self._condition:
            self._running.pop(threading.get_ident(), None)
            while not batch:  # Another thread may take the frames while this one waits for more.
                self._condition.wait_for(lambda: (self._decoded and self._has_idle_instance) or self._is_finished)
                if not self._decoded:
                    return batch
                latest_ns = clock.now_ns() + self.max_wait_ns
                while self._decoded and len(self._decoded) < self._max_size and self._may_more_come():
                    wait_ns = min(latest_ns, self._latest_start_ns()) - clock.now_ns()
                    if wait_ns <= 0:
                        break
                    self._condition.wait(wait_ns / 1e9)
                batch = self._take_fitting() if self._has_idle_instance else batch
            self._running[threading.get_ident()] = _RunningBatch(clock.now_ns(), len(batch))
            self._last_had_company = len(batch) > 1
            return batch

    def _take_fitting(self) -> list[Request]:
        """Takes the first frames, as many as end together before the earliest deadline that can be met alone."""
        batch: list[Request] = []
        earliest = Deadline.NEVER
        while self._decoded and len(batch) < self._max_size:
            deadline = self._decoded[0].deadline
            if not deadline.is_expired(clock.now_ns() + self._reply_after_ns(1)):
                earliest = min(earliest, deadline)
            if batch and earliest.is_expired(clock.now_ns() + self._safe_reply_after_ns(len(batch) + 1)):
                self._fitting_size = len(batch)
                return batch
            batch.append(self._decoded.popleft())
        if len(batch) >= self._fitting_size:
            self._fitting_size = min(self._max_size, len(batch) + 1)
        return batch

    def _reply_after_ns(self, size: int) -> int:
        """The estimated time from the start of a batch of this size to its replies."""
        return self.inference_latency.ns(size) + self._postprocessor.latency.ns

    def _safe_reply_after_ns(self, size: int) -> int:
        return round(_SAFETY_FACTOR * self._reply_after_ns(size)) + _WAKE_UP_NS

    def _may_more_come(self) -> bool:
        """Checks if waiting may pay: frames are on their way, or the last batch had several.

        A lone vehicle with one frame in flight therefore waits once for nothing, and not again.
        """
        return bool(self._reserved or (not self._closed and (self._admission.depth or self._last_had_company)))

    def _latest_start_ns(self) -> int:
        """The latest start of a batch with one more frame for which no waiting frame misses its deadline."""
        earliest = min(request.deadline for request in self._decoded)
        return earliest.at_ns - self._safe_reply_after_ns(len(self._decoded) + 1)

    def _infer(self, batch: Sequence[Request]) -> None:
        others_wait = len(batch) > 1 or bool(self._decoded or self._reserved or self._admission.depth)
        live = [request for request in batch if self._is_worth_inferring(request, others_wait=others_wait)]
        error = self._try(live) if live else None
        if error is None:
            return
        if isinstance(error, ModelUnavailableError):
            for request in live:
                self._replier.refuse(request, Status.FAILED, str(error))
            return
        for request in live:
            if self._is_worth_inferring(request, others_wait=others_wait) and (error := self._try([request])):
                if isinstance(error, ProcessLostError):
                    self._circuit_breaker.strike(request.vehicle)
                self._replier.refuse(request, Status.FAILED, f"poison: {error}")

    def _is_worth_inferring(self, request: Request, *, others_wait: bool) -> bool:
        """Checks if a frame can still be used by its client, and refuses it if not."""
        if reason := self._circuit_breaker.reason(request.vehicle):
            self._replier.refuse(request, Status.REJECTED, reason)
        elif refusal := request.refusal(EXPIRED_BEFORE_INFERENCE):
            self._replier.refuse(request, *refusal)
        elif not self._ends_in_time(request.deadline, 0, 1, others_wait=others_wait):
            self._refused_in_row += not others_wait
            self._replier.refuse(request, *TOO_LATE)
        else:
            return True
        return False

    def _ends_in_time(self, deadline: Deadline, start_ns: int, size: int, *, others_wait: bool) -> bool:
        """Estimates if a batch of `size` frames that starts in `start_ns` has its replies before the deadline."""
        end_ns = clock.now_ns() + start_ns
        if others_wait:
            return not deadline.is_expired(end_ns + self._reply_after_ns(size))
        end_ns += self.inference_latency.fastest_ns(1) + self._postprocessor.latency.fastest_ns
        return not deadline.is_expired(end_ns) or self._refused_in_row >= _PROBE_AFTER

    def _try(self, batch: Sequence[Request]) -> SkylaneError | None:
        """Infers a batch and passes its frames to the postprocessor; returns the error if the model failed."""
        self._refused_in_row = 0
        batched_ns = clock.now_ns()
        for request in batch:
            request.batch_size = len(batch)
            request.times[Stage.BATCHED] = batched_ns
        try:
            # A single frame needs no copy.
            images = batch[0].image[None] if len(batch) == 1 else np.stack([request.image for request in batch])
            outputs = self._model.infer(images)
        except SkylaneError as error:
            return error
        except Exception as error:  # noqa: BLE001  The batch fails, the worker goes on.
            self._replier.errors.record("inference", error)
            return UnexpectedError(f"internal error in inference ({type(error).__name__}): see the worker's log")
        inferred_ns = clock.now_ns()
        for request in batch:
            request.times[Stage.INFERRED] = inferred_ns
            request.image = None
        for listener in self._replier.on_batch:
            listener(self._model.card, len(batch))
        self.inference_latency.add(len(batch), inferred_ns - batched_ns)
        for index, request in enumerate(batch):
            request.outputs = {name: values[index] for name, values in outputs.items()}
            if request is batch[-1] and not (self._decoded or self._reserved):
                self._postprocessor.process(request, self._model)  # Faster than waking another thread.
            else:
                self._postprocessor.put(request, self._model)
        return None

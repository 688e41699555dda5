"""Batching: gathers decoded frames of one model and runs the engine."""

import queue
import time
from collections.abc import Callable

import numpy as np

from cloud.model import Model
from cloud.replies import Replier
from cloud.request import Request
from shared.errors import SkylaneError
from shared.messages import Status
from shared.stages import Stage
from shared.threads import Handover

HandOn = Callable[[Request, Model], None]


class Batcher:
    """The only caller of its model's engine. Frames wait decoded, so that the engine never waits for a decoder."""

    def __init__(self, model: Model, replier: Replier, hand_on: HandOn, *, max_wait_ms: float = 0.0) -> None:
        """`hand_on` gets each frame with what the model gave for it, and the model."""
        self._model = model
        self._replier = replier
        self._hand_on = hand_on
        self._max_size = model.max_batch_size
        self._max_wait_s = max_wait_ms / 1e3
        self._handover: Handover[Request] = Handover(2 * self._max_size)

    def put(self, request: Request) -> None:
        """Queue a decoded frame; waits while the engine is behind, which fills admission and so answers `overloaded`."""
        self._handover.put(request)

    def close(self) -> None:
        """No more frames will come."""
        self._handover.close()

    def run(self) -> None:
        """Infer until closed; the body of the engine thread."""
        with self._handover.reader() as get:
            while (first := get()) is not None:
                batch, ended = self._gather(first, get)
                self._infer(batch)
                if ended:
                    return

    def _gather(self, first: Request, get: Callable[..., Request | None]) -> tuple[list[Request], bool]:
        """The first frame and those that are there, or come within the wait; and whether the end came with them."""
        batch = [first]
        until = time.monotonic() + self._max_wait_s
        while len(batch) < self._max_size:
            try:
                request = get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if request is None:
                return batch, True
            batch.append(request)
        return batch, False

    def _infer(self, batch: list[Request]) -> None:
        live = []
        for request in batch:
            if request.is_expired:
                self._replier.refuse(request, Status.EXPIRED, "its budget ended before inference")
            else:
                live.append(request)
        if not live:
            return
        for request in live:
            request.batch_size = len(live)
            request.stamp(Stage.BATCHED)
        try:
            # One frame is a view; only a batch has to be copied together.
            pictures = live[0].picture[None] if len(live) == 1 else np.stack([request.picture for request in live])
            outputs = self._model.infer(pictures)
        except SkylaneError as error:
            for request in live:
                self._replier.refuse(request, Status.FAILED, str(error))
            return
        for request in live:
            request.stamp(Stage.INFERRED)
            request.picture = None
        for place, request in enumerate(live):
            request.outputs = {head: values[place] for head, values in outputs.items()}
            self._hand_on(request, self._model)

"""The single entry for frames: every frontend (MQTT, gRPC, HTTP) submits its requests here."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from cloud.frontend import Frontend
from cloud.serving.admission import Admission, CircuitBreaker
from cloud.serving.errors import ApiError, ErrorCode
from cloud.serving.replies import Replier
from cloud.serving.request import EXPIRED_IN_QUEUE, Refusal, Request
from cloud.serving.served_models import InFlight, ServedModel, ServedModels
from shared.inference.engine import Outputs
from shared.messages.frame import FrameHeader, FrameMessage, ResultMessage, Status
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_status import NodeState, NodeStatus
from shared.messages.topics import FrameId
from shared.stages import Stage


class Answered(NamedTuple):
    """The reply to a frame, and the raw outputs of the model if they were requested."""

    message: ResultMessage
    outputs: Outputs | None = None


class Submission(Frontend):
    """Checks each request, admits it to the queue and counts it until it has its reply. Thread-safe.

    Frontends that answer calls submit a frame message with `put`, whose reply is a future; refused calls raise errors.
    """

    def __init__(
        self,
        admission: Admission,
        circuit_breaker: CircuitBreaker,
        in_flight: InFlight,
        replier: Replier,
        served_models: ServedModels,
        *,
        session: str,
    ) -> None:
        self.admission = admission
        self._circuit_breaker = circuit_breaker
        self._in_flight = in_flight
        self._replier = replier
        self._served_models = served_models
        self._session = session
        self._sequence = itertools.count()
        self._removed: frozenset[str] = frozenset()  # Models that are being unloaded.
        self._changed = threading.Condition()
        self._changes = 0
        self._state = NodeState.ONLINE

    def submit(self, request: Request) -> None:
        """Admits a request to the queue, or calls its `refuse`.

        Requests that the queue drops to make room are refused too, each by its own `refuse`.
        """
        self._in_flight.add(request)
        if reason := self._circuit_breaker.reason(request.vehicle):
            request.refuse(request, Refusal(Status.REJECTED, reason))
        elif refusal := request.refusal(EXPIRED_IN_QUEUE):
            request.refuse(request, refusal)
        else:
            for dropped in self.admission.offer(request):
                overloaded = Refusal(Status.OVERLOADED, f"{self.admission.depth} frames are waiting")
                dropped.refuse(dropped, dropped.refusal(EXPIRED_IN_QUEUE) or overloaded)

    def cards(self) -> tuple[ModelCard, ...]:
        """The cards of the served models, the current version of each model first."""
        return tuple(card for card in self._served_models.cards() if card.name not in self._removed)

    def find(self, model: str, version: str | None = None) -> ServedModel:
        """Returns a version of a model, without `version` the current one.

        Raises:
            ApiError: it is not served; the message lists the served models.
        """
        self._check_not_removed(model)
        try:
            return self._served_models.find(model, version)
        except MessageError as error:
            raise ApiError(ErrorCode.NOT_FOUND, str(error)) from error

    @property
    def status(self) -> NodeStatus:
        """The state of the worker and the models that it serves."""
        return NodeStatus(
            self._state,
            self._session,
            self.admission.max_frames,
            self.cards() if self._state is NodeState.ONLINE else (),
        )

    def wait_for_change(self, seen: int, timeout_s: float, is_over: Callable[[], bool]) -> int:
        """Waits until the status may have changed, and returns the number of changes so far.

        Args:
            seen: The number that the last call returned, at first 0.
            timeout_s: The longest wait.
            is_over: Ends the wait early if true; call `recheck_listeners` when its result changes.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._changes != seen or is_over(), timeout_s)
            return self._changes

    def recheck_listeners(self) -> None:
        """Makes every `wait_for_change` call its `is_over` again."""
        with self._changed:
            self._changed.notify_all()

    def new_id(self, vehicle: str, camera: str) -> FrameId:
        """Creates an id for a frame whose client gave none."""
        return FrameId(vehicle, camera, self._session, next(self._sequence))

    def put(
        self,
        message: FrameMessage,
        *,
        received_ns: int,
        max_reply_bytes: int,
        heads: bool = False,
    ) -> Future[Answered]:
        """Submits a frame; the future has its reply, which may be a refusal. Cancelling it drops the frame.

        Args:
            message: The frame.
            received_ns: When the call was received.
            max_reply_bytes: The largest result that the client accepts.
            heads: Whether to return the raw outputs of the model.

        Raises:
            ApiError: the worker is stopping, or the model is being unloaded.
        """
        if self._state is not NodeState.ONLINE:
            raise ApiError(ErrorCode.STOPPING, "the worker is stopping: use another one")
        self._check_not_removed(message.model)
        future: Future[Answered] = Future()
        due_ns = next((stamp.at_ns for stamp in message.stamps if stamp.stage == Stage.DUE), None)
        self.submit(
            Request(
                payload=message.data,
                vehicle=message.id.vehicle,
                camera=message.id.camera,
                model=message.model,
                reply=partial(_set_result, future),
                times={Stage.RECEIVED: received_ns},
                max_reply_bytes=max_reply_bytes,
                correlation=message.id,
                header=FrameHeader(due_ns, message.deadline, message.version, message.attempt),
                message=message,
                refuse=lambda request, refusal: self._replier.refuse(request, *refusal),
                wants_outputs=heads,
                is_wanted=lambda: not future.cancelled(),
            )
        )
        return future

    def add_model(self, model: str) -> None:
        """Makes `put` accept frames for a model again."""
        self._removed -= {model}

    def remove_model(self, model: str) -> None:
        """Makes `put` refuse frames for a model from now on, and removes its cards."""
        self._removed |= {model}
        self.announce()

    def announce(self) -> None:
        """Wakes the calls that wait for a change of the status."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Makes `put` refuse new frames; those that were submitted are still served."""
        self._state = NodeState.STOPPING
        self.announce()

    def _check_not_removed(self, model: str) -> None:
        if model in self._removed and model in self._served_models.names:
            raise ApiError(ErrorCode.NOT_FOUND, f"{model} is being unloaded: ask for another model")


def _set_result(future: Future[Answered], message: ResultMessage, outputs: Outputs | None = None) -> None:
    with suppress(InvalidStateError):  # The client has cancelled the call.
        future.set_result(Answered(message, outputs))

"""The door: where frames enter that came over REST or gRPC, into the same queue as those of the broker."""

import itertools
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from cloud.engines.engine import Outputs
from cloud.gateway.common.errors import Kind, RefusedError
from cloud.models.model import OutputType
from cloud.serving.admission import Admission
from cloud.serving.circuit_breaker import CircuitBreaker
from cloud.serving.inflight import Unanswered
from cloud.serving.request import Request
from cloud.serving.served_models import Lane, Serving
from shared.encoding.msgpack_reader import MessageError
from shared.messages.frame import FrameMessage, ResultMessage, Status
from shared.messages.frame_header import FrameHeader
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState, NodeStatus
from shared.messages.topics import FrameId
from shared.stages import Stage


class Answered(NamedTuple):
    """What became of a frame, and the model's outputs where they were asked for as they are."""

    message: ResultMessage
    outputs: Outputs | None = None


class Door:
    """Hands frames to admission and their answers back to whoever waits. Any thread may call it."""

    def __init__(
        self,
        admission: Admission,
        serving: Serving,
        circuit_breaker: CircuitBreaker,
        *,
        session: str,
        refuse: Callable[[Request, Status, str], None],
    ) -> None:
        """`refuse` tells the sender of a frame, which may have come by another door, that it was pushed out."""
        self._admission = admission
        self._serving = serving
        self._hold_off = circuit_breaker
        self._session = session
        self._refuse = refuse
        self._sequence = itertools.count()
        self._unanswered = Unanswered()
        self._dismissed: frozenset[str] = frozenset()
        self._changed = threading.Condition()
        self._changes = 0
        self._state = NodeState.ONLINE

    @property
    def max_images(self) -> int:
        """How many a call may bring: as many as may wait."""
        return self._admission.max_frames

    @property
    def depth(self) -> int:
        """How many frames wait, of all doors."""
        return self._admission.depth

    def depths(self) -> Mapping[str, int]:
        """The same by model, as their senders name it."""
        return self._admission.depths()

    def cards(self) -> tuple[ModelCard, ...]:
        """What is served; of each model the current version first."""
        return tuple(card for card in self._serving.cards() if card.name not in self._dismissed)

    def lane(self, model: str, version: str | None = None) -> Lane:
        """The lane of a model's version; of its current one where none is named.

        Raises:
            RefusedError: it is not served; the message names what is.
        """
        self._check_not_dismissed(model)
        try:
            return self._serving.find(model, version)
        except MessageError as error:
            raise RefusedError(Kind.NOT_FOUND, str(error)) from error

    def card(self, model: str, version: str | None = None) -> ModelCard:
        """The card of the same; what is raised too."""
        return self.lane(model, version).card

    def heads(self, card: ModelCard) -> tuple[str, ...]:
        """The outputs of a model as its engine gives them, by name."""
        lane = self._serving.lane(card.name, card.version)
        return tuple(lane.model.manifest.heads) if lane else ()

    def given(self, card: ModelCard) -> Mapping[str, OutputType]:
        """What the warm-up of a model found its outputs to be; none where it had none."""
        lane = self._serving.lane(card.name, card.version)
        return lane.model.given if lane else {}

    @property
    def status(self) -> NodeStatus:
        """Where the worker stands, and what it serves."""
        return NodeStatus(
            self._state,
            self._session,
            self._admission.max_frames,
            self.cards() if self._state is NodeState.ONLINE else (),
        )

    def wait_for_change(self, seen: int, timeout_s: float, is_over: Callable[[], bool]) -> int:
        """Wait until the status may have changed since `seen` (at first 0), at most so long; how often it has by now.

        `is_over`: whether nobody listens any more; call `recheck_listeners` where that has become so.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._changes != seen or is_over(), timeout_s)
            return self._changes

    def recheck_listeners(self) -> None:
        """Have whoever waits for a change look whether somebody still listens."""
        with self._changed:
            self._changed.notify_all()

    def new_id(self, vehicle: str, camera: str) -> FrameId:
        """An id for a frame whose sender gave it none."""
        return FrameId(vehicle, camera, self._session, next(self._sequence))

    def put(
        self,
        message: FrameMessage,
        *,
        received_ns: int,
        max_reply_bytes: int,
        heads: bool = False,
    ) -> Future[Answered]:
        """Hand a frame in; the future is done when the frame has its answer, whatever became of it.

        `heads`: answer with the model's outputs as they are. Cancel the future where nobody waits any more.

        Raises:
            RefusedError: the worker is stopping, or unloads the model.
        """
        if self._state is not NodeState.ONLINE:
            raise RefusedError(Kind.STOPPING, "the worker is stopping: ask another one")
        self._check_not_dismissed(message.model)
        future: Future[Answered] = Future()
        due_ns = next((stamp.at_ns for stamp in message.stamps if stamp.stage == Stage.DUE), None)
        request = Request(
            payload=message.data,
            vehicle=message.id.vehicle,
            camera=message.id.camera,
            model=message.model,
            answer=partial(self._settle, future, message.model),
            times={Stage.RECEIVED: received_ns},
            max_reply_bytes=max_reply_bytes,
            correlation=message.id,
            head=FrameHeader(due_ns, message.budget_ms, message.version, message.attempt),
            message=message,
            reply_with_outputs=partial(self._settle, future, message.model) if heads else None,
            is_wanted=lambda: not future.cancelled(),
        )
        self._unanswered.came(message.model)
        if held := self._hold_off.reason(request.vehicle):
            self._refuse(request, Status.REJECTED, held)
            return future
        for refused in self._admission.offer(request):
            if refused.is_expired:
                self._refuse(refused, Status.EXPIRED, "its budget ended while it waited")
            else:
                self._refuse(refused, Status.OVERLOADED, f"{self._admission.depth} frames are waiting")
        return future

    def check(self, cards: Collection[ModelCard]) -> None:
        """See cloud.models.model_swap.Door: any number of models can be told of here."""

    def admit(self, model: str) -> None:
        """Take a model's frames from now on."""
        self._dismissed -= {model}

    def dismiss(self, model: str, within_s: float = 10.0) -> None:
        """Take a model's frames no more; returns when those that came have been answered, or after `within_s`."""
        self._dismissed |= {model}
        self.announce()  # Before the wait: whoever hears of it sends no more.
        self._unanswered.wait_until_none(model, within_s)

    def announce(self) -> None:
        """Tell those who listen what is served now."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Take no more frames; those that came are still answered."""
        self._state = NodeState.STOPPING
        self.announce()

    def _check_not_dismissed(self, model: str) -> None:
        if model in self._dismissed and model in self._serving.models:
            raise RefusedError(Kind.NOT_FOUND, f"{model} is being unloaded: ask for another model")

    def _settle(
        self, future: Future[Answered], model: str, message: ResultMessage, outputs: Outputs | None = None
    ) -> None:
        with suppress(InvalidStateError):  # Whoever asked has gone.
            future.set_result(Answered(message, outputs))
        self._unanswered.left(model)  # Now: by a stream's thread, what is left behind its call would pile up.

"""Control: answers what operators ask of this worker over the broker, beside the frames and never in their way."""

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from functools import partial

from cloud.models.model_swap import Exchange, ModelSwapError
from cloud.serving.request_errors import RequestErrors
from cloud.serving.served_models import Lane, Serving
from shared.errors import SkylaneError
from shared.logs import RateLimitedLogger, get_logger
from shared.messages import topics
from shared.messages.control import (
    CONTROL_CONTENT_TYPE,
    MAX_REQUEST_BYTES,
    ControlError,
    ControlReply,
    ControlRequest,
    ModelEntry,
    ModelState,
    Verb,
    pack_reply,
    unpack_request,
)
from shared.messages.model_card import ModelCard
from shared.mqtt.bus import Bus, Delivery, Properties
from shared.runtime.threads import BoundedQueue, Counts

_MAX_REQUESTS = 32  # That wait to be read.
_MAX_CHANGES = 4  # Loads and unloads that wait for the one under way.


Tell = Callable[[ControlReply], None]  # Takes the reply to whoever asked.


class Control:
    """Two threads: one answers at once, one loads and unloads. What it refuses is counted by its reason."""

    def __init__(
        self,
        worker: str,
        serving: Serving,
        exchange: Exchange,
        operators: Collection[str] = (),
        *,
        errors: RequestErrors | None = None,
    ) -> None:
        """`operators`: names that may send requests; empty: every name that the broker admits.

        `errors` records requests that fail unexpectedly.
        """
        self._errors = errors or RequestErrors()
        self._worker = worker
        self._serving = serving
        self._exchange = exchange
        self.operators = frozenset(operators)
        self._requests: BoundedQueue[Delivery] = BoundedQueue(_MAX_REQUESTS)
        self._changes: BoundedQueue[tuple[ControlRequest, Tell]] = BoundedQueue(_MAX_CHANGES)
        self._loading: tuple[str, str] | None = None  # Model and version.
        self._refused = Counts()
        self._log = RateLimitedLogger(get_logger("cloud"))
        self._bus: Bus | None = None

    @property
    def refused(self) -> Mapping[str, int]:
        """How many requests were refused, by the reason: unreadable, busy, operator, response_topic, request, failed."""
        return self._refused.by_name()

    def open(self, bus: Bus) -> None:
        """Answer what comes over `bus`."""
        self._bus = bus
        bus.subscribe(topics.CONTROL.filter(worker=self._worker), topics.CONTROL.qos, self._received)

    def ask(self, request: ControlRequest) -> Future[ControlReply]:
        """Ask through another door than the broker; the reply's `error` says why a request is refused.

        Any thread may call it. `request.operator` is whoever has proved to be that.
        """
        future: Future[ControlReply] = Future()
        self._take(request, future.set_result)
        return future

    def close(self) -> None:
        """Take no more requests; those that wait are still answered."""
        if self._bus is not None:
            self._bus.unsubscribe(topics.CONTROL.filter(worker=self._worker))
        self._requests.close()

    def answer(self) -> None:
        """Read and answer requests until closed; the body of the control thread."""
        try:
            with self._requests.reader() as get:
                read = self._errors.guarded("control", self._read)
                while (delivery := get()) is not None:
                    read(delivery)
        finally:
            self._changes.close()

    def change(self) -> None:
        """Load and unload until closed; the body of the loading thread."""
        with self._changes.reader() as get:
            while (item := get()) is not None:
                request, tell = item
                try:
                    tell(self._changed(request))
                except SkylaneError as error:
                    self._refuse("failed", request, tell, str(error))
                except Exception as error:  # noqa: BLE001  The request fails, the worker goes on.
                    self._fail(request, tell, error)
                finally:
                    self._loading = None

    def _received(self, delivery: Delivery) -> None:
        if delivery.retained:  # Kept by the broker, an order would be carried out anew at every connect.
            self._ignore("retained", delivery.topic)
        elif len(delivery.payload) > MAX_REQUEST_BYTES:
            self._ignore("unreadable", delivery.topic)
        elif not self._requests.offer(delivery):
            self._ignore("busy", delivery.topic)

    def _read(self, delivery: Delivery) -> None:
        names = topics.CONTROL.names_in(delivery.topic)
        try:
            request = unpack_request(delivery.payload, names["verb"] if names else "")
        except ControlError as error:
            if error.reply_to is None:
                self._ignore("unreadable", delivery.topic)
            else:
                operator, nonce = error.reply_to
                self._refused.add("request")
                self._log.warning(
                    ("request", operator), "control request refused", operator=operator, reason=str(error)
                )
                self._reply(operator, ControlReply(nonce, self._worker, error=str(error)))
            return
        tell = partial(self._reply, request.operator)
        reply_topic = topics.REPLIES.of(operator=request.operator, nonce=request.nonce)
        if delivery.properties.response_topic not in (None, reply_topic):
            self._refuse("response_topic", request, tell, f"the response topic must be {reply_topic}")
        else:
            self._take(request, tell)

    def _take(self, request: ControlRequest, tell: Tell) -> None:
        """Answer a request, now or when its turn comes."""
        if self.operators and request.operator not in self.operators:
            self._refuse("operator", request, tell, f"operator {request.operator!r} may not control this worker")
        elif request.verb in (Verb.LOAD, Verb.UNLOAD):
            if not self._changes.offer((request, tell)):
                self._refuse("busy", request, tell, f"{_MAX_CHANGES} loads and unloads wait already: ask again later")
        else:
            try:
                tell(self._told(request))
            except SkylaneError as error:
                self._refuse("failed", request, tell, str(error))
            except Exception as error:  # noqa: BLE001  The request fails, the worker goes on.
                self._fail(request, tell, error)

    def _told(self, request: ControlRequest) -> ControlReply:
        """What needs no change."""
        if request.verb is Verb.LIST:
            return self._answer_to(request, models=tuple(self._listed(request.model)))
        lane = self._serving.lane(request.model, request.version) if request.model else None
        is_ready = lane is not None if request.model else bool(self._serving.models)
        models = (self._entry(lane),) if lane else ()
        if request.verb is Verb.READY:
            return self._answer_to(request, is_ready=is_ready, models=models)
        if lane is not None:
            return self._answer_to(request, is_ready=True, models=models, card=lane.card)
        loader = self._exchange.loader
        if loader is None:
            self._serving.find(request.model, request.version)  # Which tells what is served instead.
            raise ModelSwapError("this worker has no repository")
        return self._answer_to(request, card=loader.repository.card(request.model, request.version))

    def _changed(self, request: ControlRequest) -> ControlReply:
        if request.verb is Verb.LOAD:
            self._loading = (request.model, request.version or "")
            lane, took_ms = self._exchange.load(request.model, request.version, keep=request.keep)
            return self._answer_to(request, is_ready=True, models=(self._entry(lane),), took_ms=took_ms)
        left = self._exchange.unload(request.model, request.version)
        entries = (self._entry(lane, ModelState.AVAILABLE) for lane in left)
        return self._answer_to(request, is_ready=bool(self._serving.models), models=tuple(entries))

    def _listed(self, model: str) -> Iterator[ModelEntry]:
        """What is served, then what could be; of one model where one is named."""
        served = [lane for lane in self._serving.lanes if model in ("", lane.card.name)]
        yield from (self._entry(lane) for lane in served)
        keys = {lane.key for lane in served}
        loader = self._exchange.loader
        if loader is None:
            return
        repository = loader.repository
        for name in repository.names():
            if model not in ("", name):
                continue
            try:
                versions = repository.versions(name)
            except SkylaneError as error:
                yield ModelEntry(name, "", ModelState.BROKEN, detail=str(error))
                continue
            for version in versions:
                if (name, version) in keys:
                    continue
                loading = self._loading in ((name, version), (name, "")) and version in (versions[-1], self._loading[1])
                try:
                    card = repository.card(name, version)
                except SkylaneError as error:
                    yield ModelEntry(name, version, ModelState.BROKEN, detail=str(error))
                    continue
                problem = loader.problems.get((name, version), "")
                if version == versions[-1]:
                    problem = problem or loader.problems.get((name, None), "")
                state = ModelState.LOADING if loading else ModelState.BROKEN if problem else ModelState.AVAILABLE
                detail = problem if state is ModelState.BROKEN else ""
                yield ModelEntry(name, version, state, card.task, sha256=card.sha256, detail=detail)

    def _entry(self, lane: Lane, state: ModelState | None = None) -> ModelEntry:
        card = lane.card
        if state is None:
            state = ModelState.CURRENT if self._serving.is_current(lane) else ModelState.KEPT
        return ModelEntry(card.name, card.version, state, card.task, f"{card.engine} {card.precision}", card.sha256)

    def _answer_to(
        self,
        request: ControlRequest,
        *,
        is_ready: bool = False,
        models: tuple[ModelEntry, ...] = (),
        card: ModelCard | None = None,
        took_ms: float | None = None,
    ) -> ControlReply:
        return ControlReply(request.nonce, self._worker, is_ready=is_ready, models=models, card=card, took_ms=took_ms)

    def _refuse(self, reason: str, request: ControlRequest, tell: Tell, error: str) -> None:
        """Counts and logs a refusal, and reports it to the sender of the request."""
        self._refused.add(reason)
        self._log.warning(
            (reason, request.operator),
            "control request refused",
            operator=request.operator,
            verb=request.verb.value,
            model=request.model,
            reason=error,
            **({"version": request.version} if request.version else {}),
        )
        tell(ControlReply(request.nonce, self._worker, error=error))

    def _ignore(self, reason: str, topic: str) -> None:
        """Counts and logs a request whose sender cannot be answered."""
        self._refused.add(reason)
        self._log.warning(reason, "control request ignored", reason=reason, topic=topic)

    def _fail(self, request: ControlRequest, tell: Tell, error: Exception) -> None:
        """Records an unexpected exception and refuses the request that led to it."""
        self._errors.record("control", error)
        try:
            self._refuse("failed", request, tell, f"internal error ({type(error).__name__}): see the worker's log")
        except Exception as second:  # noqa: BLE001  The reply itself cannot be sent.
            self._errors.record("control", second)

    def _reply(self, operator: str, reply: ControlReply) -> None:
        assert self._bus is not None
        self._bus.publish(
            topics.REPLIES.of(operator=operator, nonce=reply.nonce),
            pack_reply(reply),
            qos=topics.REPLIES.qos,
            properties=Properties(content_type=CONTROL_CONTENT_TYPE, correlation=reply.nonce.encode()),
        )

"""The control frontend: operators list, load and unload models over the broker or the gateway."""

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from functools import partial

from cloud.models.model_swap import ModelSwap, ModelSwapError
from cloud.serving.request import RequestErrors
from cloud.serving.served_models import ServedModel, ServedModels
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
from shared.threads import BoundedQueue, Counts

_MAX_REQUESTS = 32  # Unread requests.
_MAX_CHANGES = 4  # Loads and unloads that wait for the current one.

Respond = Callable[[ControlReply], None]  # Sends the reply to the sender of the request.


class Control:
    """Serves control requests with two threads: one replies to queries over the broker, one loads and unloads models."""

    def __init__(
        self,
        worker: str,
        served_models: ServedModels,
        model_swap: ModelSwap,
        operators: Collection[str] = (),
        *,
        errors: RequestErrors | None = None,
    ) -> None:
        """`operators` are the names that may send requests; empty: all that the broker admits.

        `errors` records unexpected exceptions.
        """
        self._errors = errors or RequestErrors()
        self._worker = worker
        self._served_models = served_models
        self._model_swap = model_swap
        self.operators = frozenset(operators)
        self._requests: BoundedQueue[Delivery] = BoundedQueue(_MAX_REQUESTS)
        self._changes: BoundedQueue[tuple[ControlRequest, Respond]] = BoundedQueue(_MAX_CHANGES)
        self._loading: tuple[str, str] | None = None  # Model and version.
        self._refused = Counts()
        self._log = RateLimitedLogger(get_logger("cloud"))
        self._bus: Bus | None = None

    @property
    def refused(self) -> Mapping[str, int]:
        """Number of refused requests by reason.

        The reasons are unreadable, retained, busy, operator, response_topic, request and failed.
        """
        return self._refused.by_name()

    def open(self, bus: Bus) -> None:
        """Receives requests over `bus`."""
        self._bus = bus
        bus.subscribe(topics.CONTROL.filter(worker=self._worker), topics.CONTROL.qos, self._received)

    def ask(self, request: ControlRequest) -> Future[ControlReply]:
        """Submits a request that the gateway permits; the reply has an `error` if it is refused. Thread-safe."""
        future: Future[ControlReply] = Future()
        self._handle(request, future.set_result)
        return future

    def close(self) -> None:
        """Accepts no more requests; waiting ones still get replies."""
        if self._bus is not None:
            self._bus.unsubscribe(topics.CONTROL.filter(worker=self._worker))
        self._requests.close()

    def run_queries(self) -> None:
        """Reads requests and replies to queries until closed; the body of the control thread."""
        try:
            with self._requests.reader() as get:
                read = self._errors.guarded("control", self._read)
                while (delivery := get()) is not None:
                    read(delivery)
        finally:
            self._changes.close()

    def run_changes(self) -> None:
        """Loads and unloads models until closed; the body of the loading thread."""
        with self._changes.reader() as get:
            while (item := get()) is not None:
                request, respond = item
                self._respond(self._change, request, respond)
                self._loading = None

    def _received(self, delivery: Delivery) -> None:
        if delivery.retained:  # The broker would deliver a retained request at every connect.
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
                self._publish(operator, ControlReply(nonce, self._worker, error=str(error)))
            return
        respond = partial(self._publish, request.operator)
        reply_topic = topics.REPLIES.of(operator=request.operator, nonce=request.nonce)
        if delivery.properties.response_topic not in (None, reply_topic):
            self._refuse("response_topic", request, respond, f"the response topic must be {reply_topic}")
        else:
            self._handle(request, respond)

    def _handle(self, request: ControlRequest, respond: Respond) -> None:
        """Replies to a query now, or queues a change."""
        if self.operators and request.operator not in self.operators:
            self._refuse("operator", request, respond, f"operator {request.operator!r} may not control this worker")
        elif request.verb not in (Verb.LOAD, Verb.UNLOAD):
            self._respond(self._query, request, respond)
        elif not self._changes.offer((request, respond)):
            self._refuse("busy", request, respond, f"{_MAX_CHANGES} loads and unloads wait already: try again later")

    def _respond(
        self, make_reply: Callable[[ControlRequest], ControlReply], request: ControlRequest, respond: Respond
    ) -> None:
        """Sends the reply to a request; an exception fails only this request."""
        try:
            respond(make_reply(request))
        except SkylaneError as error:
            self._refuse("failed", request, respond, str(error))
        except Exception as error:  # noqa: BLE001  The request fails, the worker goes on.
            self._errors.record("control", error)
            try:
                self._refuse(
                    "failed", request, respond, f"internal error ({type(error).__name__}): see the worker's log"
                )
            except Exception as second:  # noqa: BLE001  The reply itself cannot be sent.
                self._errors.record("control", second)

    def _query(self, request: ControlRequest) -> ControlReply:
        """The reply to a request that changes nothing."""
        if request.verb is Verb.LIST:
            return self._reply(request, models=tuple(self._entries(request.model)))
        served = self._served_models.get(request.model, request.version) if request.model else None
        is_ready = served is not None if request.model else bool(self._served_models.names)
        models = (self._entry(served),) if served else ()
        if request.verb is Verb.READY:
            return self._reply(request, is_ready=is_ready, models=models)
        if served is not None:
            return self._reply(request, is_ready=True, models=models, card=served.card)
        loader = self._model_swap.loader
        if loader is None:
            self._served_models.find(request.model, request.version)  # Raises an error with the served models.
            raise ModelSwapError("this worker has no repository")
        return self._reply(request, card=loader.repository.find(request.model, request.version).card())

    def _change(self, request: ControlRequest) -> ControlReply:
        """Loads or unloads a model."""
        if request.verb is Verb.LOAD:
            self._loading = (request.model, request.version or "")
            served, took_ms = self._model_swap.load(request.model, request.version, keep=request.keep)
            return self._reply(request, is_ready=True, models=(self._entry(served),), took_ms=took_ms)
        removed = self._model_swap.unload(request.model, request.version)
        entries = (self._entry(served, ModelState.AVAILABLE) for served in removed)
        return self._reply(request, is_ready=bool(self._served_models.names), models=tuple(entries))

    def _entries(self, model: str) -> Iterator[ModelEntry]:
        """The served versions, then those of the repository; of all models if the name is empty."""
        all_served = [served for served in self._served_models.all if model in ("", served.card.name)]
        yield from (self._entry(served) for served in all_served)
        keys = {served.key for served in all_served}
        loader = self._model_swap.loader
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
                    card = repository.find(name, version).card()
                except SkylaneError as error:
                    yield ModelEntry(name, version, ModelState.BROKEN, detail=str(error))
                    continue
                problem = loader.problems.get((name, version), "")
                if version == versions[-1]:
                    problem = problem or loader.problems.get((name, None), "")
                state = ModelState.LOADING if loading else ModelState.BROKEN if problem else ModelState.AVAILABLE
                detail = problem if state is ModelState.BROKEN else ""
                yield ModelEntry(name, version, state, card.task, sha256=card.sha256, detail=detail)

    def _entry(self, served: ServedModel, state: ModelState | None = None) -> ModelEntry:
        card = served.card
        if state is None:
            state = ModelState.CURRENT if self._served_models.is_current(served) else ModelState.KEPT
        return ModelEntry(card.name, card.version, state, card.task, f"{card.engine} {card.precision}", card.sha256)

    def _reply(
        self,
        request: ControlRequest,
        *,
        is_ready: bool = False,
        models: tuple[ModelEntry, ...] = (),
        card: ModelCard | None = None,
        took_ms: float | None = None,
    ) -> ControlReply:
        return ControlReply(request.nonce, self._worker, is_ready=is_ready, models=models, card=card, took_ms=took_ms)

    def _refuse(self, reason: str, request: ControlRequest, respond: Respond, error: str) -> None:
        """Counts, logs and sends a refusal."""
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
        respond(ControlReply(request.nonce, self._worker, error=error))

    def _ignore(self, reason: str, topic: str) -> None:
        """Counts and logs a request whose sender cannot get a reply."""
        self._refused.add(reason)
        self._log.warning(reason, "control request ignored", reason=reason, topic=topic)

    def _publish(self, operator: str, reply: ControlReply) -> None:
        assert self._bus is not None
        self._bus.publish(
            topics.REPLIES.of(operator=operator, nonce=reply.nonce),
            pack_reply(reply),
            qos=topics.REPLIES.qos,
            properties=Properties(content_type=CONTROL_CONTENT_TYPE, correlation=reply.nonce.encode()),
        )

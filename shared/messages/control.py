"""What an operator and a worker say to each other: which models are there, which are served, load this, unload that."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgpack

from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import MAX_ITEMS, VERSION, Fields, MessageError
from shared.imaging.labels import MAX_LABELS
from shared.messages.model_card import ModelCard
from shared.messages.node_status import card_from_wire, card_to_wire
from shared.messages.topics import TopicNameError, checked

CONTROL_CONTENT_TYPE = "application/vnd.skylane.control+msgpack"
MAX_REQUEST_BYTES = 4096  # A request is a few names.
_MAX_DETAIL = 500  # Characters.
_MAX_MS = 86_400_000.0


class Verb(StrEnum):
    """What an operator may ask of a worker; the last part of the topic."""

    LIST = "list"  # The models of its repository and what it serves of them.
    METADATA = "metadata"  # A model's card.
    READY = "ready"  # Whether it takes frames, or frames of a model.
    LOAD = "load"  # Load a model, warm it up and have it answer from then on.
    UNLOAD = "unload"  # Answer what is under way with a model, and free it.


class ModelState(StrEnum):
    """Where a version of a model stands on a worker."""

    CURRENT = "current"  # It answers frames that name no version.
    KEPT = "kept"  # It answers frames that name its version.
    LOADING = "loading"
    AVAILABLE = "available"  # In the repository, not loaded.
    BROKEN = "broken"  # In the repository, with a manifest that cannot be used.


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """What an operator asks of a worker."""

    operator: str  # As it calls itself; what it may do, the broker and the worker decide.
    nonce: str  # Of this request alone; the reply comes back by it.
    verb: Verb
    model: str = ""
    version: str | None = None
    keep: bool = False  # Of a load: leave the version that was current loaded, for frames that name it.


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A version of a model, as a worker lists it."""

    model: str
    version: str
    state: ModelState
    task: str = ""
    engine: str = ""  # What runs it, and in what numbers: "tensorflow fp32"; empty where nothing does.
    sha256: str = ""
    detail: str = ""  # What is wrong with it.


@dataclass(frozen=True, slots=True)
class ControlReply:
    """A worker's answer: an error, or what the verb asks for."""

    nonce: str
    worker: str
    error: str = ""  # Empty: it was done.
    is_ready: bool = False
    models: tuple[ModelEntry, ...] = ()
    card: ModelCard | None = None
    took_ms: float | None = None  # Of a load: until it answered frames.


class ControlError(MessageError):
    """A request that cannot be read. `reply_to` is the operator and nonce where those could be."""

    def __init__(self, message: str, reply_to: tuple[str, str] | None) -> None:
        self.reply_to = reply_to
        super().__init__(message)


def pack_request(request: ControlRequest) -> bytes:
    """The wire form of a request; its verb is in the topic."""
    return _pack(
        {
            "v": VERSION,
            "operator": request.operator,
            "nonce": request.nonce,
            "model": request.model,
            "version": request.version,
            "keep": request.keep,
        }
    )


def unpack_request(payload: Buffer, verb: str) -> ControlRequest:
    """Read a request that came by the topic of a verb.

    Raises:
        ControlError: there is no such verb, or a field is missing, of a wrong kind or no name.
    """
    if len(payload) > MAX_REQUEST_BYTES:
        raise ControlError(f"a request of {len(payload)} bytes is over the limit of {MAX_REQUEST_BYTES}", None)
    try:
        fields = Fields.of_message(payload)
        reply_to = (fields.name("operator"), fields.name("nonce"))
    except MessageError as error:
        raise ControlError(str(error), None) from error
    try:
        return _request(fields, verb, *reply_to)
    except MessageError as error:
        raise ControlError(str(error), reply_to) from error


def pack_reply(reply: ControlReply) -> bytes:
    """The wire form of a reply; of more models than a message may hold, the first."""
    return _pack(
        {
            "v": VERSION,
            "nonce": reply.nonce,
            "worker": reply.worker,
            "error": reply.error[:_MAX_DETAIL],
            "ready": reply.is_ready,
            "models": [_entry_to_wire(entry) for entry in reply.models[:MAX_ITEMS]],
            "card": card_to_wire(reply.card) if reply.card else None,
            "took_ms": reply.took_ms,
        }
    )


def unpack_reply(payload: Buffer) -> ControlReply:
    """Read a reply.

    Raises:
        MessageError: it is none of this version, or a field is missing, of a wrong kind or out of bounds.
    """
    fields = Fields.of_message(payload, most_items=MAX_LABELS)
    return ControlReply(
        nonce=fields.name("nonce"),
        worker=fields.name("worker"),
        error=fields.text("error"),
        is_ready=fields.flag("ready"),
        models=tuple(_entry_from_wire(Fields(entry)) for entry in fields.list("models")),
        card=card_from_wire(Fields(fields.map("card"))) if fields.has("card") else None,
        took_ms=fields.number("took_ms", 0.0, _MAX_MS) if fields.has("took_ms") else None,
    )


def _request(fields: Fields, verb: str, operator: str, nonce: str) -> ControlRequest:
    if verb not in list(Verb):
        raise MessageError(f"no verb {verb[:40]!r}: use {', '.join(Verb)}")
    model = fields.text("model")
    if model or verb in (Verb.METADATA, Verb.LOAD, Verb.UNLOAD):
        try:
            checked("model", model)
        except TopicNameError as error:
            raise fields.wrong("model", f"{error}; a model is loaded by its name in the repository") from error
    return ControlRequest(
        operator=operator,
        nonce=nonce,
        verb=Verb(verb),
        model=model,
        version=fields.version("version") if fields.has("version") else None,
        keep=fields.flag("keep"),
    )


def _entry_to_wire(entry: ModelEntry) -> dict[str, str]:
    return {
        "model": entry.model,
        "version": entry.version,
        "state": entry.state.value,
        "task": entry.task,
        "engine": entry.engine,
        "sha256": entry.sha256,
        "detail": entry.detail[:_MAX_DETAIL],
    }


def _entry_from_wire(fields: Fields) -> ModelEntry:
    return ModelEntry(
        model=fields.text("model"),
        version=fields.text("version"),
        state=fields.choice("state", ModelState),
        task=fields.text("task"),
        engine=fields.text("engine"),
        sha256=fields.text("sha256"),
        detail=fields.text("detail"),
    )


def _pack(fields: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed

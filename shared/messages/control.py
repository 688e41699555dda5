"""Messages by which an operator lists, loads and unloads the models of a worker."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import msgpack

from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import MAX_ITEMS, VERSION, FieldReader, MessageError
from shared.imaging.labels import MAX_LABELS
from shared.messages.model_card import ModelCard
from shared.messages.node_status import card_from_wire, card_to_wire
from shared.messages.topics import TopicNameError, validate_name

CONTROL_CONTENT_TYPE = "application/vnd.skylane.control+msgpack"
MAX_REQUEST_BYTES = 4096  # A request is a few names.
_MAX_ERROR_LENGTH = 500  # Characters.
_MAX_MS = 86_400_000.0


class Verb(StrEnum):
    """An operation on a worker; the last level of the topic."""

    LIST = "list"  # List the models of the repository and their states.
    METADATA = "metadata"  # Get the card of a model.
    READY = "ready"  # Ask if the worker, or one of its models, accepts frames.
    LOAD = "load"  # Load and warm up a model, then serve it.
    UNLOAD = "unload"  # Finish the pending frames of a model, then free it.


class ModelState(StrEnum):
    """The state of a model version on a worker."""

    CURRENT = "current"  # Serves frames that name no version.
    KEPT = "kept"  # Serves only frames that name this version.
    LOADING = "loading"
    AVAILABLE = "available"  # Present in the repository, but not loaded.
    BROKEN = "broken"  # Present in the repository, but its manifest is invalid.


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request of an operator to a worker."""

    operator: str  # Self-reported name; the broker and the worker check its permissions.
    nonce: str  # Unique per request; the reply topic contains it.
    verb: Verb
    model: str = ""
    version: str | None = None
    keep: bool = False  # For LOAD: keep the previous version loaded, for frames that name it.


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model version in the list of a worker."""

    model: str
    version: str
    state: ModelState
    task: str = ""
    engine: str = ""  # Engine and precision, such as "tensorflow fp32"; empty if it is not loaded.
    sha256: str = ""
    detail: str = ""  # The problem, if the state is BROKEN.


@dataclass(frozen=True, slots=True)
class ControlReply:
    """A worker's reply: an error, or the result of the operation."""

    nonce: str
    worker: str
    error: str = ""  # Empty on success.
    is_ready: bool = False
    models: tuple[ModelEntry, ...] = ()
    card: ModelCard | None = None
    took_ms: float | None = None  # For LOAD: time until the model served frames.


class ControlError(MessageError):
    """A request could not be read. `reply_to` holds its operator and nonce, or None if those are invalid too."""

    def __init__(self, message: str, reply_to: tuple[str, str] | None) -> None:
        self.reply_to = reply_to
        super().__init__(message)


def pack_request(request: ControlRequest) -> bytes:
    """Encodes a request; the verb is not included because it is part of the topic."""
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
    """Decodes a request; `verb` is taken from its topic.

    Raises:
        ControlError: The verb is unknown, or a field is missing, of a wrong type or out of range.
    """
    if len(payload) > MAX_REQUEST_BYTES:
        raise ControlError(f"a request of {len(payload)} bytes is over the limit of {MAX_REQUEST_BYTES}", None)
    try:
        fields = FieldReader.unpack(payload)
        reply_to = (fields.name("operator"), fields.name("nonce"))
    except MessageError as error:
        raise ControlError(str(error), None) from error
    try:
        return _read_request(fields, verb, *reply_to)
    except MessageError as error:
        raise ControlError(str(error), reply_to) from error


def pack_reply(reply: ControlReply) -> bytes:
    """Encodes a reply; models beyond the item limit are left out."""
    return _pack(
        {
            "v": VERSION,
            "nonce": reply.nonce,
            "worker": reply.worker,
            "error": reply.error[:_MAX_ERROR_LENGTH],
            "ready": reply.is_ready,
            "models": [
                {**asdict(entry), "detail": entry.detail[:_MAX_ERROR_LENGTH]} for entry in reply.models[:MAX_ITEMS]
            ],
            "card": card_to_wire(reply.card) if reply.card else None,
            "took_ms": reply.took_ms,
        }
    )


def unpack_reply(payload: Buffer) -> ControlReply:
    """Decodes a reply.

    Raises:
        MessageError: The payload is not a reply of this version, or a field is missing, of a wrong type or out of range.
    """
    fields = FieldReader.unpack(payload, max_items=MAX_LABELS)
    return ControlReply(
        nonce=fields.name("nonce"),
        worker=fields.name("worker"),
        error=fields.text("error"),
        is_ready=fields.flag("ready"),
        models=tuple(_entry_from_wire(FieldReader(entry)) for entry in fields.list("models")),
        card=card_from_wire(FieldReader(fields.map("card"))) if fields.has("card") else None,
        took_ms=fields.number("took_ms", 0.0, _MAX_MS) if fields.has("took_ms") else None,
    )


def _read_request(fields: FieldReader, verb: str, operator: str, nonce: str) -> ControlRequest:
    if verb not in list(Verb):
        raise MessageError(f"no verb {verb[:40]!r}: use {', '.join(Verb)}")
    model = fields.text("model")
    if model or verb in (Verb.METADATA, Verb.LOAD, Verb.UNLOAD):
        try:
            validate_name("model", model)
        except TopicNameError as error:
            raise fields.error("model", f"{error}; give the name of a model in the repository") from error
    return ControlRequest(
        operator=operator,
        nonce=nonce,
        verb=Verb(verb),
        model=model,
        version=fields.version("version") if fields.has("version") else None,
        keep=fields.flag("keep"),
    )


def _entry_from_wire(fields: FieldReader) -> ModelEntry:
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

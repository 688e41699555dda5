"""Messages by which an operator lists, loads and unloads the models of a worker."""

import dataclasses
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated

import msgpack
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from shared.compression import Buffer
from shared.imaging.labels import MAX_LABELS
from shared.messages.model_card import ModelCard, check_card
from shared.messages.msgpack_reader import MAX_ITEMS, VERSION, MessageError, Milliseconds, Name, Schema, Text, Version
from shared.messages.topics import TopicNameError, validate_name

CONTROL_CONTENT_TYPE = "application/vnd.skylane.control+msgpack"
MAX_REQUEST_BYTES = 4096  # A request is a few names.
_MAX_ERROR_LENGTH = 500  # Characters.


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
class _Sender:
    """The fields to which an error is replied."""

    operator: Name  # Self-reported name; the broker and the worker check its permissions.
    nonce: Name  # Unique per request; the reply topic contains it.


@dataclass(frozen=True, slots=True)
class ControlRequest(_Sender):
    """A request of an operator to a worker."""

    verb: Verb
    model: Text = ""
    version: Version | None = None
    keep: bool = False  # For LOAD: keep the previous version loaded, for frames that name it.


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model version in the list of a worker."""

    model: Text
    version: Text
    state: ModelState
    task: Text = ""
    engine: Text = ""  # Engine and precision, such as "tensorflow fp32"; empty if it is not loaded.
    sha256: Text = ""
    detail: Text = ""  # The problem, if the state is BROKEN.


class ControlReply(Struct, frozen=True):
    """A worker's reply: an error, or the result of the operation."""

    nonce: Name
    worker: Name
    error: Text = ""  # Empty on success.
    is_ready: bool = field(default=False, name="ready")
    models: Annotated[tuple[ModelEntry, ...], Meta(max_length=MAX_LABELS)] = ()
    card: ModelCard | None = None
    took_ms: Milliseconds | None = None  # For LOAD: time until the model served frames.


class ControlError(MessageError):
    """A request could not be read. `reply_to` holds its operator and nonce, or None if those are invalid too."""

    def __init__(self, message: str, reply_to: tuple[str, str] | None) -> None:
        self.reply_to = reply_to
        super().__init__(message)


_MODELS = frozenset((Verb.METADATA, Verb.LOAD, Verb.UNLOAD))  # Verbs that need the name of a model.
_SENDERS = Schema(_Sender, noun="a request", max_bytes=MAX_REQUEST_BYTES)
_REQUESTS = Schema(ControlRequest, optional=("version",))
_REPLIES = Schema(ControlReply, optional=("card", "took_ms"), max_items=MAX_LABELS)


def pack_request(request: ControlRequest) -> bytes:
    """Encodes a request; the verb is not included because it is part of the topic."""
    fields = asdict(request)
    del fields["verb"]
    packed: bytes = msgpack.packb({"v": VERSION} | fields)
    return packed


def unpack_request(payload: Buffer, verb: str) -> ControlRequest:
    """Decodes a request; `verb` is taken from its topic.

    Raises:
        ControlError: The verb is unknown, or a field is missing, of a wrong type or out of range.
    """
    reply_to = None
    try:
        sender = _SENDERS.read(payload)
        reply_to = (sender.operator, sender.nonce)
        request = _REQUESTS.read(payload, verb=verb)
        if request.model or request.verb in _MODELS:
            validate_name("model", request.model)
    except TopicNameError as error:
        problem = f"field 'model': {error}; give the name of a model in the repository"
        raise ControlError(problem, reply_to) from error
    except MessageError as error:
        raise ControlError(str(error), reply_to) from error
    return request


def pack_reply(reply: ControlReply) -> bytes:
    """Encodes a reply; long errors are shortened, and models beyond the item limit are left out."""
    models = tuple(
        dataclasses.replace(entry, detail=entry.detail[:_MAX_ERROR_LENGTH]) for entry in reply.models[:MAX_ITEMS]
    )
    return _REPLIES.write(replace(reply, error=reply.error[:_MAX_ERROR_LENGTH], models=models))


def unpack_reply(payload: Buffer) -> ControlReply:
    """Decodes a reply; raises a MessageError if it is invalid."""
    reply = _REPLIES.read(payload)
    if reply.card:
        check_card(reply.card)
    return reply

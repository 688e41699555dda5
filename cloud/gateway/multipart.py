"""Multipart forms: the fields and the file that a browser or `curl -F` sends."""

from email.message import Message
from email.parser import HeaderParser
from typing import NamedTuple

from cloud.gateway.refusal import Kind, RefusedError

_MOST_PARTS = 8
_MOST_HEAD_BYTES = 4096  # Of one part.


class Part(NamedTuple):
    """One field of a form."""

    name: str
    data: bytes
    is_file: bool


def parts_of(body: bytes, content_type: str) -> list[Part]:
    """The fields of a `multipart/form-data` body; `content_type` with its parameters.

    Raises:
        RefusedError: it is no such form, or has too many fields.
    """
    boundary = _parameter(_headers(f"Content-Type: {content_type}"), "content-type", "boundary")
    if not boundary:
        raise RefusedError(Kind.INVALID, "the form tells no boundary: send 'multipart/form-data; boundary=…'")
    delimiter = b"\r\n--" + boundary.encode("utf-8", "replace")
    pieces = (b"\r\n" + body).split(delimiter, _MOST_PARTS + 2)
    if len(pieces) > _MOST_PARTS + 2:
        raise RefusedError(Kind.INVALID, f"the form has more than {_MOST_PARTS} fields: send a file or a path")
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):  # noqa: PLR2004  What is before, a part, and the end.
        raise RefusedError(Kind.INVALID, "the form does not end with its boundary, or holds nothing: send all of it")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> Part:
    head, found, data = piece.partition(b"\r\n\r\n")
    if not found or len(head) > _MOST_HEAD_BYTES:
        raise RefusedError(Kind.INVALID, "a field of the form has no head, or too large a one")
    headers = _headers(head.decode("utf-8", "replace").lstrip())
    name = _parameter(headers, "content-disposition", "name")
    if name is None:
        raise RefusedError(
            Kind.INVALID, "a field of the form has no name: send 'Content-Disposition: form-data; name=…'"
        )
    is_file = _parameter(headers, "content-disposition", "filename") is not None
    return Part(name, data, is_file)


def _headers(text: str) -> Message:
    return HeaderParser().parsestr(text)


def _parameter(headers: Message, header: str, name: str) -> str | None:
    try:
        found = headers.get_param(name, header=header)
    except (TypeError, ValueError, LookupError):  # The library's own, of a parameter in pieces that do not fit.
        return None
    if isinstance(found, tuple):  # As RFC 2231 has it: charset, language, value.
        found = found[2]
    return found

"""Multipart forms: the fields and the file that a browser or `curl -F` sends, read by python-multipart."""

import logging
import math
from typing import NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from cloud.gateway.common.errors import Kind, RefusedError

MAX_FORM_FIELDS = 8
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # It warns of each bad form, which our answer does.
_IN_MEMORY = {"MAX_MEMORY_FILE_SIZE": math.inf}  # Never written to a disk: the body is within its own limit.


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
    parts: list[Part] = []
    is_whole = False

    def take(name: bytes | None, data: bytes | None, *, is_file: bool) -> None:
        if len(parts) == MAX_FORM_FIELDS:
            raise RefusedError(Kind.INVALID, f"the form has more than {MAX_FORM_FIELDS} fields: send a file or a path")
        parts.append(Part((name or b"").decode("utf-8", "replace"), data or b"", is_file))

    def take_field(field: Field) -> None:
        take(field.field_name, field.value, is_file=False)

    def take_file(file: File) -> None:
        file.file_object.seek(0)
        take(file.field_name, file.file_object.read(), is_file=True)

    def end() -> None:
        nonlocal is_whole
        is_whole = True

    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise RefusedError(Kind.INVALID, "the form tells no boundary: send 'multipart/form-data; boundary=…'")
    try:
        parser = FormParser("multipart/form-data", take_field, take_file, end, boundary, config=_IN_MEMORY)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise RefusedError(Kind.INVALID, f"the form cannot be read: {str(error)[:80]}") from error
    if not is_whole or not parts:
        raise RefusedError(Kind.INVALID, "the form does not end with its boundary, or holds nothing: send all of it")
    return parts

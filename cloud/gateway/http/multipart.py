"""Parses multipart forms, as a browser or `curl -F` sends them, with python-multipart."""

import logging
import math

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from cloud.gateway.common.errors import InvalidError

MAX_FORM_FIELDS = 8

_IN_MEMORY = {"MAX_MEMORY_FILE_SIZE": math.inf}  # Files stay in memory: the size of the body is limited already.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # The response reports malformed forms.


def parse_form(body: bytes, content_type: str) -> dict[str, bytes]:
    """Returns the fields and files of a `multipart/form-data` body; `content_type` is the header with its parameters.

    Raises:
        ApiError: the form is malformed or has too many fields.
    """
    fields: list[tuple[str, bytes]] = []
    is_complete = False

    def add(name: bytes | None, data: bytes | None) -> None:
        if len(fields) == MAX_FORM_FIELDS:
            raise InvalidError(f"the form has more than {MAX_FORM_FIELDS} fields: send a file or a path")
        fields.append(((name or b"").decode("utf-8", "replace"), data or b""))

    def add_field(field: Field) -> None:
        add(field.field_name, field.value)

    def add_file(file: File) -> None:
        file.file_object.seek(0)
        add(file.field_name, file.file_object.read())

    def end() -> None:
        nonlocal is_complete
        is_complete = True

    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise InvalidError("the content type has no boundary: send 'multipart/form-data; boundary=…'")
    try:
        parser = FormParser("multipart/form-data", add_field, add_file, end, boundary, config=_IN_MEMORY)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise InvalidError(f"the form is malformed: {str(error)[:80]}") from error
    if not is_complete or not fields:
        raise InvalidError("the form is empty or does not end with its boundary: send all of it")
    return dict(fields)

"""A caller by `POST /api/detect`: a picture goes up as it is, and the worker does the rest."""

import base64
import binascii
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, SSLError

from edge.transports.credentials import Security, worker_address
from edge.transports.http.channel import told_of
from edge.transports.http.connection_pool import connections
from edge.upload.client import LOOK_S, ImageRefusedError, Told, WorkerBusyError, WorkerLostError
from edge.upload.grpc_client import UploadSettings
from shared import clock
from shared.encoding.bounded_json import parse
from shared.encoding.msgpack_reader import MAX_MESSAGE_BYTES
from shared.sanitize import printable

MAX_VALUES = 1 << 16  # Of an answer in JSON: of a thousand detections, ten thousand.

_OK, _BUSY = 200, 429
_HEALTH = "/healthz"
_TRY_S, _LEAST_S = 2.0, 0.01  # For an answer to that.
_OF_THE_PICTURE = (400, 408, 413, 415, 422, 500)  # What is wrong; another one may be answered.
_MOST_ANSWER = MAX_MESSAGE_BYTES
_PIECE_BYTES = 1 << 18
_TOLD_CHARACTERS = 300
_TOLD = ("task", "model", "version", "classes", "detections", "shares", "tensors")  # Of an answer, in a line.


class HttpUploadClient:
    """One place at a worker's HTTP door."""

    def __init__(self, node: str, settings: UploadSettings, is_over: Callable[[], bool] = lambda: False) -> None:
        """Wait for a server. `node`: HOST:PORT; `is_over`: whether nobody needs it any more.

        Raises:
            WorkerAddressError: the address, the authority or the token cannot be used.
            WorkerLostError: there is none within the time to connect, or before it was over.
        """
        address = worker_address(node)
        security = Security.read(settings.tls_ca)
        self._headers = security.headers(settings.sender, address)
        self._timeout = urllib3.Timeout(connect=settings.answer_timeout_s, read=settings.answer_timeout_s)
        self._pool = connections(address, security, 1)
        query = {"model": settings.model, "output": int(settings.annotate)}
        if settings.version is not None:
            query["version"] = settings.version
        self._path = f"/api/detect?{urlencode(query)}"
        try:
            self._reach(settings.connect_timeout_s, is_over)
        except BaseException:
            self.close()
            raise

    def ask(self, picture: Path) -> Told:
        """See Caller."""
        began_ns = clock.now_ns()
        body, content_type = urllib3.encode_multipart_formdata({"file": (picture.name, picture.read_bytes())})
        try:
            response = self._pool.urlopen(
                "POST",
                self._path,
                body,
                {**self._headers, "content-type": content_type},
                retries=False,
                redirect=False,
                timeout=self._timeout,
                preload_content=False,
                decode_content=False,
            )
            answer = _whole(response)
            response.release_conn()
        except HTTPError as error:
            raise WorkerLostError(told_of(error)) from error
        if response.status == _BUSY:
            raise WorkerBusyError(f"HTTP {response.status}: {_text(answer)}")
        if response.status in _OF_THE_PICTURE:
            raise ImageRefusedError(f"HTTP {response.status}: {_text(answer)}")
        if response.status != _OK:  # So would be every other picture's.
            raise WorkerLostError(f"HTTP {response.status}: {_text(answer)}")
        return _told(answer, len(body), (clock.now_ns() - began_ns) / 1e6)

    def _reach(self, within_s: float, is_over: Callable[[], bool]) -> None:
        """Wait until somebody answers; what a picture is answered tells the rest."""
        until_s = time.monotonic() + within_s
        while True:
            left_s = max(_LEAST_S, until_s - time.monotonic())
            try:
                timeout = urllib3.Timeout(connect=min(_TRY_S, left_s), read=min(_TRY_S, left_s))
                answer = self._pool.urlopen(
                    "GET", _HEALTH, retries=False, redirect=False, timeout=timeout, preload_content=False
                )
            except HTTPError as error:
                if isinstance(error, SSLError) or left_s <= LOOK_S or is_over():
                    raise WorkerLostError(f"it cannot be reached ({told_of(error)})") from error
                time.sleep(LOOK_S)
            else:
                answer.close()
                return

    def close(self) -> None:
        """See Caller."""
        self._pool.close()


def _whole(response: urllib3.BaseHTTPResponse) -> bytes:
    """An answer's body, as much as is taken."""
    body = bytearray()
    while len(body) <= _MOST_ANSWER and (piece := response.read1(_PIECE_BYTES)):
        body += piece
    if len(body) > _MOST_ANSWER:
        response.close()  # With what is still to come.
    return bytes(body)


def _told(answer: bytes, bytes_up: int, total_ms: float) -> Told:
    try:
        fields: dict[str, Any] = parse(answer, MAX_VALUES)
        annotated = fields.get("annotated")
        inference_ms = fields["times_ms"].get("inferred")
        size = fields["picture"]
        return Told(
            {**{name: fields[name] for name in _TOLD if name in fields}, "frame": [size["height"], size["width"]]},
            bytes_up,
            None if inference_ms is None else float(inference_ms),
            total_ms,
            base64.b64decode(annotated) if annotated else None,
        )
    except (ValueError, TypeError, LookupError, AttributeError, binascii.Error) as error:
        raise WorkerLostError(f"its answer is none of /api/detect: {type(error).__name__}") from error


def _text(answer: bytes) -> str:
    return printable(answer[:_TOLD_CHARACTERS].decode(errors="replace"))

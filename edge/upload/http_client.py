"""The upload client over `POST /api/detect`: sends image files as they are; the worker decodes and resizes them."""

import base64
import binascii
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, SSLError

from edge.transports.credentials import WorkerCredentials, worker_address
from edge.transports.http.client import WorkerHttpClient, describe_error
from edge.upload.client import (
    CONNECT_POLL_S,
    ImageRefusedError,
    ImageResult,
    UploadSettings,
    WorkerBusyError,
    WorkerLostError,
)
from shared import clock
from shared.encoding.bounded_json import parse
from shared.encoding.msgpack_reader import MAX_MESSAGE_BYTES

MAX_VALUES = 1 << 16  # JSON values in a reply; a thousand detections have ten thousand.

_OK, _BUSY = 200, 429
_REFUSED = (400, 408, 413, 415, 422, 500)  # The problem is this image: others may succeed.
_PROBE_TIMEOUT_S, _MIN_TIMEOUT_S = 2.0, 0.01
_MAX_PROBE_BYTES = 1 << 16
_MAX_REPLY_BYTES = MAX_MESSAGE_BYTES
_RESULT_FIELDS = ("task", "model", "version", "classes", "detections", "shares", "tensors")


class HttpUploadClient:
    """A connection to a worker's HTTP endpoint. See UploadClient."""

    def __init__(self, address: str, settings: UploadSettings, is_needed: Callable[[], bool] = lambda: True) -> None:
        """Waits for a server at HOST:PORT, for as long as `is_needed` returns True.

        Raises:
            WorkerAddressError: the address, the certificate authority or the token cannot be used.
            WorkerLostError: there is none within the connection timeout.
        """
        self._timeout_s = settings.answer_timeout_s
        credentials = WorkerCredentials.read(settings.worker_tls_ca)
        self._client = WorkerHttpClient(worker_address(address), credentials, settings.vehicle, max_connections=1)
        query = {"model": settings.model, "output": int(settings.annotate)}
        if settings.model_version is not None:
            query["version"] = settings.model_version
        self._path = f"/api/detect?{urlencode(query)}"
        try:
            self._wait_for_server(settings.connect_timeout_s, is_needed)
        except BaseException:
            self.close()
            raise

    def upload(self, image: Path) -> ImageResult:
        """See UploadClient."""
        started_ns = clock.now_ns()
        body, content_type = urllib3.encode_multipart_formdata({"file": (image.name, image.read_bytes())})
        headers = {"content-type": content_type}
        try:
            reply = self._client.request(
                "POST", self._path, body, headers, timeout_s=self._timeout_s, max_bytes=_MAX_REPLY_BYTES
            )
        except HTTPError as error:
            raise WorkerLostError(describe_error(error)) from error
        problem = f"HTTP {reply.status}: {reply.text}"
        if reply.status == _BUSY:
            raise WorkerBusyError(problem)
        if reply.status in _REFUSED:
            raise ImageRefusedError(problem)
        if reply.status != _OK:
            raise WorkerLostError(problem)
        if reply.body is None:
            raise WorkerLostError(f"its reply is larger than {_MAX_REPLY_BYTES} bytes")
        return _result(reply.body, len(body), (clock.now_ns() - started_ns) / 1e6)

    def close(self) -> None:
        """See UploadClient."""
        self._client.close()

    def _wait_for_server(self, timeout_s: float, is_needed: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(_MIN_TIMEOUT_S, deadline_s - time.monotonic())
            try:
                probe_timeout_s = min(_PROBE_TIMEOUT_S, left_s)
                self._client.request("GET", "/healthz", timeout_s=probe_timeout_s, max_bytes=_MAX_PROBE_BYTES)
            except HTTPError as error:
                if isinstance(error, SSLError) or left_s <= CONNECT_POLL_S or not is_needed():
                    raise WorkerLostError(f"it cannot be reached ({describe_error(error)})") from error
                time.sleep(CONNECT_POLL_S)
            else:
                return


def _result(reply: bytes, bytes_up: int, total_ms: float) -> ImageResult:
    try:
        fields: dict[str, Any] = parse(reply, MAX_VALUES)
        annotated = fields.get("annotated")
        inference_ms = fields["times_ms"].get("inferred")
        size = fields["picture"]
        return ImageResult(
            {
                **{name: fields[name] for name in _RESULT_FIELDS if name in fields},
                "frame": [size["height"], size["width"]],
            },
            bytes_up,
            None if inference_ms is None else float(inference_ms),
            total_ms,
            base64.b64decode(annotated) if annotated else None,
        )
    except (ValueError, TypeError, LookupError, AttributeError, binascii.Error) as error:
        raise WorkerLostError(f"its reply is not that of /api/detect: {type(error).__name__}") from error

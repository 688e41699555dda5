"""The contract of a client of any server, and the simplest one: bytes over HTTP."""

import http.client
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bench.peers.rig.function import INFERENCE_HEADER
from bench.peers.rig.workload import Job
from shared.errors import SkylaneError
from shared.imaging.frames import Pixels

PATIENCE_S = 60.0  # Timeout of one answer.


class PeerError(SkylaneError):
    """A server did not start, or did not answer as expected."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a server for one image."""

    mask: Pixels  # uint8 H×W
    inference_ns: int  # Duration of the inference function, measured by the server.


class Client(Protocol):
    """One connection to a server; one call at a time."""

    def ask(self, job: Job) -> Answer:
        """Sends an image and reads the mask.

        Raises:
            PeerError: the server did not answer.
        """

    def close(self) -> None:
        """Closes the connection."""


def check_ready(port: int, path: str, word: str) -> None:
    """Checks a server's readiness route: status 200 and a body with `word`.

    Raises:
        PeerError: the server is not ready.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise PeerError(f"no answer over HTTP: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK or word not in said:
        raise PeerError(f"{path} answers HTTP {answer.status}: {said[:200]}")


def ask_once(connect: Callable[[], Client], job: Job) -> None:
    """Makes one call over a new connection.

    Raises:
        PeerError: the server did not answer.
    """
    with closing(connect()) as client:
        client.ask(job)


class HttpClient:
    """Posts the image over a persistent connection; the response has the mask, and the inference time in a header."""

    def __init__(self, port: int, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self._path = path

    def ask(self, job: Job) -> Answer:
        """See `Client.ask`."""
        try:
            self._connection.request("POST", self._path, job.data, {"Content-Type": "application/octet-stream"})
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise PeerError(f"no answer over HTTP: {error or type(error).__name__}") from error
        if answer.status != http.HTTPStatus.OK:
            raise PeerError(f"HTTP {answer.status}: {body[:200].decode(errors='replace')}")
        took_ns = int(answer.headers[INFERENCE_HEADER])
        return Answer(np.frombuffer(body, np.uint8).reshape(job.mask.shape), took_ns)

    def close(self) -> None:
        """See `Client.close`."""
        self._connection.close()

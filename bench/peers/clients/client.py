"""What every server's client offers, and the plainest one: bytes over HTTP."""

import http.client
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bench.peers.rig.function import INFERENCE_HEADER
from bench.peers.rig.workload import Job
from shared.errors import SkylaneError
from shared.imaging.frames import Pixels

PATIENCE_S = 60.0  # For one answer.


class PeerError(SkylaneError):
    """A server did not start, or did not answer as it should."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server made of a picture."""

    mask: Pixels  # uint8 H×W
    inference_ns: int  # That the function took, as the server itself timed it.


class Client(Protocol):
    """One connection to a server; one call at a time."""

    def ask(self, job: Job) -> Answer:
        """Have a picture answered, and read the mask.

        Raises:
            PeerError: it was not.
        """

    def close(self) -> None:
        """Close the connection."""


def check_ready(port: int, path: str, word: str) -> None:
    """Ask a server's own HTTP route whether it is ready: it answers 200, and says `word`.

    Raises:
        PeerError: not yet.
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


class HttpClient:
    """Posts the picture's bytes over a connection that is kept; the answer is the mask's, with a header for the time."""

    def __init__(self, port: int, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self._path = path

    def ask(self, job: Job) -> Answer:
        """As `Client.ask`."""
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
        """As `Client.close`."""
        self._connection.close()

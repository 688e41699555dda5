"""A caller: a place at a node, where one picture is under way at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shared.errors import SkylaneError

LOOK_S = 0.2  # Between two looks whether a node that is waited for is still needed.


class WorkerLostError(SkylaneError):
    """A node that answers no more, or nonsense; the picture may be another's."""


class WorkerBusyError(SkylaneError):
    """A node that has too much to do just now; a moment later it may take the picture."""


class ImageRefusedError(SkylaneError):
    """A node's word that a picture has no result."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a node says of a picture."""

    result: Mapping[str, Any]  # As a line of JSON tells it.
    bytes_up: int
    inference_ms: float | None  # None: it was not told.
    total_ms: float  # From the file's first byte to the result.
    annotated: bytes | None = None  # A JPEG.


class Caller(Protocol):
    """Asks one node. Used by one thread; close it."""

    def ask(self, picture: Path) -> Told:
        """The node's answer.

        Raises:
            ImageRefusedError: it gives no result.
            WorkerBusyError: it would take it later.
            WorkerLostError: it gives no answer, or one that is none.
        """

    def close(self) -> None:
        """Hang up."""

"""The messages between the reproduced system and its servers: raw pixels there, a score and a time back.

The original compressed no image: "payload compression" is among its open points.
"""

import asyncio
import struct
from dataclasses import dataclass

_SHAPE = struct.Struct("!III")
_REPLY = struct.Struct("!dd")


@dataclass(frozen=True, slots=True)
class RawImage:
    """An image without compression."""

    shape: tuple[int, int, int]  # Height, width, channels.
    pixels: bytes


def write_request(writer: asyncio.StreamWriter, request: RawImage) -> None:
    """Sends an image."""
    writer.write(_SHAPE.pack(*request.shape))
    writer.write(request.pixels)


async def read_request(reader: asyncio.StreamReader) -> RawImage | None:
    """Receives an image; None if the client closed the connection."""
    try:
        height, width, channels = _SHAPE.unpack(await reader.readexactly(_SHAPE.size))
        return RawImage((height, width, channels), await reader.readexactly(height * width * channels))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def write_reply(writer: asyncio.StreamWriter, score: float, inferred_ms: float) -> None:
    """Sends the score of the second label, and the time of the inference."""
    writer.write(_REPLY.pack(score, inferred_ms))


async def read_reply(reader: asyncio.StreamReader) -> tuple[float, float]:
    """Receives what `write_reply` sent.

    Raises:
        asyncio.IncompleteReadError: the server closed the connection.
    """
    score, inferred_ms = _REPLY.unpack(await reader.readexactly(_REPLY.size))
    return score, inferred_ms

"""Skylane's metadata in calls of standard inference protocols.

The tensors of these protocols have room for the image and the result only. The rest of the frame message travels as
gRPC metadata or as an HTTP header, and the rest of the result message returns in the same way.
"""

import base64
import binascii
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import MessageError
from shared.messages.frame import FrameMessage, ResultMessage, Status, pack_frame, unpack_result

FRAME_KEY, MASK_KEY = "skylane-frame-bin", "skylane-mask-bin"  # gRPC metadata, binary.
FRAME_HEADER, MASK_HEADER = "Skylane-Frame", "Skylane-Mask"  # HTTP headers, base64url without padding.
IMAGE, RESULT = "image_bytes", "result_bytes"  # Names of the input and output tensor of every model.


def pack_metadata(message: FrameMessage) -> bytes:
    """Encodes a frame message without its image, for gRPC metadata."""
    return pack_frame(replace(message, data=b""))


def pack_header(message: FrameMessage) -> str:
    """Encodes a frame message without its image, for an HTTP header."""
    return base64.urlsafe_b64encode(pack_metadata(message)).decode().rstrip("=")


def read_mask(metadata: Mapping[str, str | bytes], read_result: Callable[[], Buffer | None]) -> ResultMessage:
    """Decodes the result message in a reply's metadata and adds its data.

    Args:
        metadata: gRPC metadata or HTTP headers of the reply.
        read_result: Returns the result tensor of the reply's body, or None if there is none.

    Raises:
        MessageError: there is no result message, or the result it announces is missing.
    """
    packed = metadata.get(MASK_KEY) or _decode_header(metadata.get(MASK_HEADER, ""))
    if not isinstance(packed, bytes) or not packed:
        raise MessageError(f"the reply has no {MASK_HEADER}: the server is no Skylane worker")
    message = unpack_result(packed)
    if message.status is not Status.ANSWERED:
        return message
    data = read_result()
    if data is None:
        raise MessageError(f"the reply lacks the {RESULT} that its {MASK_HEADER} announces")
    return replace(message, data=data)


def _decode_header(text: str | bytes) -> bytes:
    """Decodes base64url without padding; returns no bytes for malformed text."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""

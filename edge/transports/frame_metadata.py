"""What a vehicle's call carries beside its picture, on the doors of standard protocols: the frame message without data.

The answer's mask message comes back the same way. The tensors' names are those that every model has at these doors.
"""

import base64
import binascii
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import MessageError
from shared.messages.frame import FrameMessage, ResultMessage, Status, pack_frame, unpack_result

FRAME_KEY, MASK_KEY = "skylane-frame-bin", "skylane-mask-bin"  # gRPC's metadata, as they are, and
FRAME_HEADER, MASK_HEADER = "Skylane-Frame", "Skylane-Mask"  # HTTP's headers, in base64url without padding.
IMAGE, RESULT = "image_bytes", "result_bytes"


def frame_beside(message: FrameMessage) -> bytes:
    """The frame message without its data."""
    return pack_frame(replace(message, data=b""))


def frame_header(message: FrameMessage) -> str:
    """The same, as a header has it."""
    return base64.urlsafe_b64encode(frame_beside(message)).decode().rstrip("=")


def mask_of(beside: Mapping[str, str | bytes], result: Callable[[], Buffer | None]) -> ResultMessage:
    """The mask message that came beside an answer, with its data. `result` finds that; None where there is none.

    Raises:
        MessageError: there is no mask message, or it announces a result that is not there.
    """
    packed = beside.get(MASK_KEY) or _from_header(beside.get(MASK_HEADER, ""))
    if not isinstance(packed, bytes) or not packed:
        raise MessageError(f"the answer has no {MASK_HEADER}: whoever gave it is no worker of Skylane's")
    message = unpack_result(packed)
    if message.status is not Status.ANSWERED:
        return message
    data = result()
    if data is None:
        raise MessageError(f"the answer has not the one {RESULT} that its {MASK_HEADER} announces")
    return replace(message, data=data)


def _from_header(text: str | bytes) -> bytes:
    """What a header holds; nothing where that is no base64url."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return b""

"""A valid frame message, the starting point of damaged and false ones."""

from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import FrameMessage
from shared.messages.topics import FrameId


def black_frame(frame_id: FrameId, model: str, height: int, width: int) -> FrameMessage:
    """Returns a valid frame with the given id: a black raw RGB image in the model's size, height×width pixels."""
    return FrameMessage(
        id=frame_id,
        model=model,
        layout=Layout.RGB8,
        shape=(height, width, 3),
        codec="raw",
        geometry=plan(Resize.STRETCH, height, width, height, width),
        frame_stamp_ns=0,
        data=bytes(height * width * 3),
    )

"""A frame as a vehicle would send it, for those who damage it or lie with it."""

from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import FrameMessage
from shared.messages.topics import FrameId


def black_frame(frame_id: FrameId, model: str, height: int, width: int) -> FrameMessage:
    """A valid frame under an id: a black picture of height×width pixels in RGB, raw, of the model's own size."""
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

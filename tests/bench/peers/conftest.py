"""A job with a very small image, so that the tests are fast."""

import numpy as np
import pytest

from bench.peers.clients import Job
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import FrameMessage
from shared.messages.topics import FrameId

SHAPE = (4, 6)


@pytest.fixture
def job() -> Job:
    """A job whose pixels are all 9 and whose mask is all 0."""
    geometry = plan(Resize.CROP, *SHAPE, *SHAPE)
    frame = FrameMessage(
        FrameId("car", "front", "session", 0), "m", Layout.RGB8, (*SHAPE, 3), "raw", geometry, 0, b"\t" * 72
    )
    return Job(frame, np.zeros(SHAPE, np.uint8))

"""What the demo shows of its video."""

from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from bench.demo import _still
from edge.sinks.video_codec import VIDEO_FORMATS, VideoCodec


@pytest.mark.parametrize(("count", "middle"), [(1, 0), (7, 3)])
@pytest.mark.parametrize("codec", VideoCodec)
def test_the_still_is_the_middle_frame(tmp_path: Path, codec: VideoCodec, count: int, middle: int) -> None:
    """A WebM file has no count of its frames, and a demo may be of one frame."""
    how = VIDEO_FORMATS[codec]
    path = tmp_path / f"drive{how.suffix}"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(how.encoder, rate=10, options=dict(how.encoder_options))
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for number in range(count):
            picture = np.full((64, 64, 3), 30 * number + 20, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    still: Any = cv2.imread(str(_still(path)))
    assert abs(int(still[32, 32, 0]) - (30 * middle + 20)) < 6

from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from edge.sinks.sink import VIDEO_FORMATS, VideoCodec
from ops.demo import write_still
from shared.threads import unchanged_scheduling


@pytest.mark.parametrize(("count", "middle"), [(1, 0), (7, 3)])
@pytest.mark.parametrize("codec", VideoCodec)
def test_the_still_image_is_the_middle_frame(tmp_path: Path, codec: VideoCodec, count: int, middle: int) -> None:
    """A WebM file contains no frame count, and a demo may have a single frame."""
    video_format = VIDEO_FORMATS[codec]
    path = tmp_path / f"drive{video_format.suffix}"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(video_format.encoder, rate=10, options=dict(video_format.encoder_options))
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        with unchanged_scheduling():  # As in the video sink.
            stream.codec_context.open()
        for number in range(count):
            image = np.full((64, 64, 3), 30 * number + 20, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    still: Any = cv2.imread(str(write_still(path)))
    assert abs(int(still[32, 32, 0]) - (30 * middle + 20)) < 6

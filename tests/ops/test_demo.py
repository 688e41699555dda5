from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from edge.sinks.sink import VideoCodec
from edge.sinks.video import VIDEO_FORMATS
from ops.demo import demo, write_still
from shared.files import file_sha256
from shared.models.repository import Repository
from shared.package_data import shipped
from shared.threads import unchanged_scheduling
from tests.support.file_server import serving


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


def test_a_real_street_is_fetched_and_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A video has no true labels, so the demo states no accuracy."""
    stored = Repository(shipped("models")).find("road-tiny")
    network, video = stored.file(), tmp_path / "street.mp4"
    with av.open(str(video), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 484, 304, "yuv420p"
        for number in range(8):
            image = np.full((304, 484, 3), 20 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    document = yaml.safe_load(stored.manifest.to_yaml())
    monkeypatch.chdir(tmp_path)
    with serving([], network.read_bytes()) as networks, serving([], video.read_bytes()) as videos:
        entries = {
            path: {
                "url": f"{address}/{path.name}",
                "size": path.stat().st_size,
                "sha256": file_sha256(path),
                "licence": "MIT",
            }
            for path, address in ((network, networks), (video, videos))
        }
        manifest = {key: document[key] for key in ("task", "format", "input", "output")}
        listed = {**entries[network], "labels": "street12", "manifest": manifest}
        catalogue = {"models": {"cityscapes-mobilenet": listed}, "bags": {"highway": entries[video]}}
        Path("catalogue.yaml").write_text(yaml.safe_dump(catalogue))
        options = ["--models", "models", "--catalogue", "catalogue.yaml", "--out", "run", "--broker", "embedded"]
        result = CliRunner().invoke(demo, ["--real", "--frames", "6", *options], catch_exceptions=False)
    assert result.exit_code == 0
    assert "6 frames answered by worker (cityscapes-mobilenet 1" in result.output
    assert "mean IoU" not in result.output
    assert (tmp_path / "run" / "report.html").exists()
    is_busy = "left out: no mask came in time" in result.output  # Six frames may all be late.
    assert is_busy or (tmp_path / "run" / "late" / "held_beside_moved.webm").exists()

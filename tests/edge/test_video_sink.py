"""Overlay videos: their codecs, their times, and how a browser shows them."""

import base64
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import click
import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Browser

from edge.cli import edge
from edge.config import EdgeConfig
from edge.sinks.sink import FrameResult, SinkError, VideoCodec
from edge.sinks.video import VIDEO_FORMATS, VideoSink
from edge.sources.source import open_source
from shared.config import read_yaml
from shared.flags import override
from shared.imaging.frames import Frame
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels
from tests.edge.samples import CARD
from tests.support.browser import browser

__all__ = ["browser"]

START_NS = 10**18
MEDIA_TYPES = {".webm": "video/webm", ".mp4": "video/mp4"}
DARK = replace(CARD, labels=Labels(("dark",), ((0, 0, 0),)))  # A model whose only label has the overlay colour black.
COLOURS = ((200, 30, 30), (30, 180, 60), (40, 60, 210), (220, 210, 40))
# Shows the frame at a time of a video, and returns the colour in the middle of each of so many columns.
SHOW = """([source, time_s, columns]) => new Promise((resolve, reject) => {
    const video = document.createElement('video');
    video.muted = true;
    video.onerror = () => reject(new Error(`${video.error.code}: ${video.error.message}`));
    video.onloadeddata = () => { video.requestVideoFrameCallback(draw); video.currentTime = time_s; };
    const draw = (_, {mediaTime}) => {
        if (Math.abs(mediaTime - time_s) > 0.01) return video.requestVideoFrameCallback(draw);
        const canvas = document.createElement('canvas');
        canvas.width = video.videoWidth;
        canvas.height = video.videoHeight;
        const context = canvas.getContext('2d');
        context.drawImage(video, 0, 0);
        const y = Math.floor(canvas.height / 2);
        const middle = (column) => Math.floor((column + 0.5) * canvas.width / columns);
        const colours = Array.from({length: columns}, (_, column) =>
            Array.from(context.getImageData(middle(column), y, 1, 1).data.slice(0, 3)));
        resolve({size: [canvas.width, canvas.height], colours});
    };
    video.src = source;
    document.body.append(video);
})"""


def _columns(height: int, width: int, colours: tuple[tuple[int, int, int], ...]) -> npt.NDArray[np.uint8]:
    image = np.empty((height, width, 3), np.uint8)
    for number, colour in enumerate(colours):
        image[:, number * width // len(colours) : (number + 1) * width // len(colours)] = colour
    return image


def _result(image: npt.NDArray[np.uint8], time_ms: int) -> FrameResult:
    height, width = image.shape[:2]
    return FrameResult(
        camera="/cam",
        sequence=time_ms,
        frame_index=time_ms,
        stamp_ns=START_NS,
        source_ns=START_NS + time_ms * 1_000_000,
        image=image,
        result=np.zeros((height, width), np.uint8),
        geometry=plan(Resize.CROP, height, width, height, width),
    )


def _written(folder: Path, codec: VideoCodec, frames: list[FrameResult]) -> Path:
    sink = VideoSink(folder, DARK, video_codec=codec)
    for frame in frames:
        sink.write(frame)
    sink.close()
    return folder / f"overlay_cam{VIDEO_FORMATS[codec].suffix}"


@pytest.mark.parametrize("codec", VideoCodec)
def test_a_video_keeps_the_times_of_the_source(tmp_path: Path, codec: VideoCodec) -> None:
    """Frames arrive at any interval, two may share a millisecond, and a model's input may have odd sides."""
    noise = np.random.default_rng(1)
    times_ms = (0, 100, 200, 500, 500)
    frames = [_result(noise.integers(0, 256, (65, 97, 3), np.uint8), time_ms) for time_ms in times_ms]
    path = _written(tmp_path, codec, frames)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (VideoCodec(stream.codec.canonical_name), stream.pix_fmt) == (codec, "yuv420p")
    read = list(open_source(str(path)).frames())
    assert [round(frame.stamp_ns / 1e6) for frame in read] == [0, 100, 200, 500, 501]
    assert all(isinstance(frame, Frame) and frame.pixels.shape == (64, 194, 3) for frame in read)


@pytest.mark.parametrize("codec", VideoCodec)
def test_an_encoder_writes_nothing_to_standard_error(tmp_path: Path, codec: VideoCodec) -> None:
    """Only the log of the node may appear there. Encoders read their settings once, so the test starts a process."""
    program = f"""
import sys
from pathlib import Path
import numpy as np
from edge.sinks.video import VideoSink
from edge.sinks.sink import VideoCodec
from tests.edge.samples import CARD
from tests.edge.test_video_sink import _result
sink = VideoSink(Path(sys.argv[1]), CARD, video_codec=VideoCodec("{codec}"))
sink.write(_result(np.zeros((120, 160, 3), np.uint8), 0))
sink.close()
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the threads of a process here")
@pytest.mark.parametrize("codec", VideoCodec)
def test_no_encoder_makes_threads_real_time(tmp_path: Path, codec: VideoCodec) -> None:
    """As root, SVT-AV1 would put them and the writer's before all other threads of the machine, the measured ones too."""
    sink = VideoSink(tmp_path, DARK, video_codec=codec)
    for number in range(3):
        sink.write(_result(np.zeros((120, 160, 3), np.uint8), 100 * number))
    assert {os.sched_getscheduler(int(each.name)) for each in Path("/proc/self/task").iterdir()} == {os.SCHED_OTHER}
    sink.close()


@pytest.mark.parametrize("height", [600, 800])
@pytest.mark.parametrize("codec", VideoCodec)
def test_a_browser_shows_a_video_in_its_true_colours(
    browser: Browser, tmp_path: Path, codec: VideoCodec, height: int
) -> None:
    """A browser guesses the colour conversion of an unmarked video, for H.264 wrongly from 720 lines on."""
    frames = [_result(np.full((height, 400, 3), shade, np.uint8), time_ms) for shade, time_ms in ((10, 0), (90, 100))]
    frames.append(_result(_columns(height, 400, COLOURS), 200))
    frames.append(_result(np.full((height, 400, 3), 250, np.uint8), 300))
    path = _written(tmp_path, codec, frames)
    source = f"data:{MEDIA_TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"
    with browser.new_context(offline=True) as context:
        shown: Any = context.new_page().evaluate(SHOW, [source, 0.2, 2 * len(COLOURS)])
    assert shown["size"] == [800, height]
    np.testing.assert_allclose(shown["colours"][: len(COLOURS)], COLOURS, atol=6)


def test_a_killed_run_leaves_a_video_that_plays(tmp_path: Path) -> None:
    """WebM is written in clusters during the run, whereas an MP4 file has no index until it is closed."""
    program = f"""
import os, signal, sys
from dataclasses import replace
from pathlib import Path
import numpy as np
from edge.sinks.video import VideoSink
from edge.sinks.sink import VideoCodec
from tests.edge.samples import CARD
from tests.edge.test_video_sink import _result
sink = VideoSink(Path(sys.argv[1]), CARD, video_codec=VideoCodec.VP9)
noise = np.random.default_rng(1)
for number in range(60):
    sink.write(_result(noise.integers(0, 2, (120, 160, 3), np.uint8) * 255, number * 500))
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    with av.open(str(tmp_path / "overlay_cam.webm")) as container:
        assert sum(1 for _ in container.decode(video=0)) >= 55


def test_an_encoder_that_is_missing_is_reported_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyAV may be built against an FFmpeg with fewer encoders, as THIRD-PARTY.md proposes."""
    for codec in (VideoCodec.VP9, VideoCodec.H264):
        missing = replace(VIDEO_FORMATS[codec], encoder=f"no-{codec}")
        monkeypatch.setitem(VIDEO_FORMATS, codec, missing)
    with pytest.raises(SinkError, match=r"vp9 needs the encoder no-vp9, .* choose another --video-codec \(av1\)"):
        VideoSink(tmp_path, DARK, video_codec=VideoCodec.VP9)


def test_h264_is_written_only_on_request(tmp_path: Path) -> None:
    """Its encoder is under the GPL, and its patents are licensed for a fee in some countries."""
    assert EdgeConfig().video_codec is not VideoCodec.H264
    assert override(EdgeConfig(), {"video_codec": "h264"}).video_codec is VideoCodec.H264
    path = tmp_path / "edge.yaml"
    path.write_text("video_codec: h264\n")
    assert read_yaml(path, EdgeConfig).video_codec is VideoCodec.H264
    with pytest.raises(click.UsageError, match="video_codec"):
        override(EdgeConfig(), {"video_codec": "divx"})


def test_the_command_line_offers_every_codec() -> None:
    """The choices come from the table; the help names the default."""
    (option,) = [option for option in edge.commands["play"].params if option.name == "video_codec"]
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices) == [str(codec) for codec in VIDEO_FORMATS]
    assert isinstance(option, click.Option)
    assert f"[{EdgeConfig().video_codec}]" in (option.help or "")

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
import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Browser

from edge.config import EdgeConfig
from edge.sinks.sink import FrameResult, SinkError, VideoCodec
from edge.sinks.video import VIDEO_FORMATS, VideoFile, VideoSink
from edge.sources.source import open_source
from shared.flags import override
from shared.imaging.frames import Frame
from shared.imaging.labels import Labels
from tests.edge.samples import CARD, make_result
from tests.support.browser import browser

__all__ = ["browser"]

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
    frames = [make_result(noise.integers(0, 256, (65, 97, 3), np.uint8), time_ms) for time_ms in times_ms]
    path = _written(tmp_path, codec, frames)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (VideoCodec(stream.codec.canonical_name), stream.pix_fmt) == (codec, "yuv420p")
    read = list(open_source(str(path)).frames())
    assert [round(frame.stamp_ns / 1e6) for frame in read] == [0, 100, 200, 500, 501]
    assert all(isinstance(frame, Frame) and frame.pixels.shape == (64, 194, 3) for frame in read)


# Writes a video by each encoder into the folder of its name, then another one, amid which it is killed.
KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from edge.sinks.sink import VideoCodec
from edge.sinks.video import VideoSink
from tests.edge.samples import CARD, make_result
noise = np.random.default_rng(1)
for codec in (*VideoCodec, VideoCodec.VP9):
    folder = Path(sys.argv[1]) / codec.value
    is_last = folder.exists()
    folder = folder / "killed" if is_last else folder
    folder.mkdir()
    sink = VideoSink(folder, CARD, video_codec=codec)
    for number in range(60 if is_last else 1):
        sink.write(make_result(noise.integers(0, 2, (72, 96, 3), np.uint8) * 255, number * 500))
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)
    sink.close()
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Returns the folder of a process that was killed, and its standard error: encoders read their settings once."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", KILLED, str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return folder, done.stderr


def test_an_encoder_writes_nothing_to_standard_error(killed: tuple[Path, str]) -> None:
    """Only the log of the node may appear there."""
    folder, errors = killed
    assert errors == ""
    assert {path.name for path in folder.iterdir()} == {codec.value for codec in VideoCodec}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the threads of a process here")
@pytest.mark.parametrize("codec", VideoCodec)
def test_no_encoder_makes_threads_real_time(tmp_path: Path, codec: VideoCodec) -> None:
    """As root, SVT-AV1 would put them and the writer's before all other threads of the machine, the measured ones too."""
    sink = VideoSink(tmp_path, DARK, video_codec=codec)
    for number in range(3):
        sink.write(make_result(np.zeros((120, 160, 3), np.uint8), 100 * number))
    assert {os.sched_getscheduler(int(each.name)) for each in Path("/proc/self/task").iterdir()} == {os.SCHED_OTHER}
    sink.close()


@pytest.mark.parametrize(
    ("codec", "height"),
    [(VideoCodec.H264, 600), (VideoCodec.H264, 800), (VideoCodec.VP9, 800), (VideoCodec.AV1, 800)],
)
def test_a_browser_shows_a_video_in_its_true_colours(
    browser: Browser, tmp_path: Path, codec: VideoCodec, height: int
) -> None:
    """A browser guesses the colour conversion of an unmarked video, for H.264 wrongly from 720 lines on."""
    frames = [
        make_result(np.full((height, 400, 3), shade, np.uint8), time_ms) for shade, time_ms in ((10, 0), (90, 100))
    ]
    frames.append(make_result(_columns(height, 400, COLOURS), 200))
    frames.append(make_result(np.full((height, 400, 3), 250, np.uint8), 300))
    path = _written(tmp_path, codec, frames)
    source = f"data:{MEDIA_TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"
    with browser.new_context(offline=True) as context:
        shown: Any = context.new_page().evaluate(SHOW, [source, 0.2, 2 * len(COLOURS)])
    assert shown["size"] == [800, height]
    np.testing.assert_allclose(shown["colours"][: len(COLOURS)], COLOURS, atol=6)


def test_a_killed_run_leaves_a_video_that_plays(killed: tuple[Path, str]) -> None:
    """WebM is written in clusters during the run, whereas an MP4 file has no index until it is closed."""
    with av.open(str(killed[0] / "vp9" / "killed" / "overlay_cam.webm")) as container:
        assert sum(1 for _ in container.decode(video=0)) >= 55


def test_a_video_that_cannot_be_finished_costs_no_other_one_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An MP4 without its end has no index."""
    sink = VideoSink(tmp_path, DARK, video_codec=VideoCodec.AV1)
    for camera in ("a", "b", "c"):
        sink.write(replace(make_result(_columns(32, 32, COLOURS)), camera=camera))
    close = VideoFile.close

    def fail_for_b(file: VideoFile) -> None:
        if file.path.name == "overlay_b.mp4":
            raise SinkError("no space left on device")
        close(file)

    monkeypatch.setattr(VideoFile, "close", fail_for_b)
    with pytest.raises(SinkError, match="no space"):
        sink.close()
    for camera in ("a", "c"):
        with av.open(tmp_path / f"overlay_{camera}.mp4") as video:
            assert len(list(video.decode(video=0))) == 1


def test_an_encoder_that_is_missing_is_reported_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyAV may be built against an FFmpeg with fewer encoders, as THIRD-PARTY.md proposes."""
    for codec in (VideoCodec.VP9, VideoCodec.H264):
        missing = replace(VIDEO_FORMATS[codec], encoder=f"no-{codec}")
        monkeypatch.setitem(VIDEO_FORMATS, codec, missing)
    with pytest.raises(SinkError, match=r"vp9 needs the encoder no-vp9, .* choose another --video-codec \(av1\)"):
        VideoSink(tmp_path, DARK, video_codec=VideoCodec.VP9)


def test_h264_is_written_only_on_request() -> None:
    """Its encoder is under the GPL, and its patents are licensed for a fee in some countries."""
    assert EdgeConfig().video_codec is not VideoCodec.H264
    assert override(EdgeConfig(), {"video_codec": "h264"}).video_codec is VideoCodec.H264

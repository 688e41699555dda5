"""The video sink: the model's input and its result side by side, in formats that browsers play."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from edge.sinks.rendering import check_new, draw_result, input_image, write_error
from edge.sinks.sink import FrameResult, SinkError, VideoCodec
from shared.files import create_file
from shared.messages.model_card import ModelCard
from shared.tasks.drawing import mark_untrained
from shared.threads import unchanged_scheduling

_OPACITY = 0.55
_TIME_BASE = Fraction(1, 1000)


@dataclass(frozen=True, slots=True)
class VideoFormat:
    """FFmpeg's encoder and container of one codec, with their options."""

    encoder: str  # Name in FFmpeg.
    encoder_options: Mapping[str, str]
    suffix: str  # Suffix of the file, which selects the container.
    container_options: Mapping[str, str]


_STREAMED = {"cluster_time_limit": "1000", "flush_packets": "1"}  # A killed run loses about one second of video.
_FAST_START = {"movflags": "+faststart"}
# All settings keep the encoder on one core, because it runs at the same time as the measured pipeline.
VIDEO_FORMATS: dict[VideoCodec, VideoFormat] = {
    VideoCodec.VP9: VideoFormat(
        "libvpx-vp9",
        {"deadline": "realtime", "cpu-used": "8", "lag-in-frames": "0", "crf": "28", "b": "0"},
        ".webm",
        _STREAMED,
    ),
    VideoCodec.AV1: VideoFormat(
        "libsvtav1", {"preset": "10", "crf": "26", "svtav1-params": "lp=1"}, ".mp4", _FAST_START
    ),
    VideoCodec.H264: VideoFormat("libx264", {"preset": "veryfast", "crf": "23"}, ".mp4", _FAST_START),
}


class VideoSink:
    """Writes `overlay_<camera>.webm` (VP9) or `.mp4` (AV1, H.264) with the source's timing."""

    in_order = True

    def __init__(self, folder: Path, card: ModelCard, *, video_codec: VideoCodec) -> None:
        """Checks that the encoder is available.

        Raises:
            SinkError: the installed PyAV does not have the encoder.
        """
        self._folder = folder
        self._card = card
        self._format = _usable_format(video_codec)
        self._files: dict[str, VideoFile] = {}

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        image = input_image(frame)
        both = np.concatenate((image, draw_result(image, frame, self._card, _OPACITY)), axis=1)
        both = mark_untrained(both, self._card)
        if frame.camera not in self._files:
            path = self._folder / f"overlay_{frame.camera_name}{self._format.suffix}"
            self._files[frame.camera] = VideoFile(path, self._format, both, frame.source_ns)
        self._files[frame.camera].add(both, frame.source_ns)

    def close(self) -> None:
        """See Sink. A file that cannot be finished costs no other one its end."""
        with ExitStack() as files:
            for file in self._files.values():
                files.callback(file.close)


class VideoFile:
    """A video file to which images are appended."""

    def __init__(self, path: Path, video_format: VideoFormat, first: Any, start_ns: int) -> None:
        """Opens the file for RGB images of the size of `first`; `start_ns` is the source time of the first one.

        Raises:
            SinkError: the file cannot be written, as for the other methods.
        """
        check_new(path)
        self.path = path
        self._start_ns = start_ns
        self._last = -1
        height, width = (side - side % 2 for side in first.shape[:2])  # yuv420p halves the colour planes.
        try:
            create_file(path).close()
            self._container = av.open(str(path), "w", options=dict(video_format.container_options))
            options = dict(video_format.encoder_options)
            stream = self._container.add_stream(video_format.encoder, options=options)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise write_error(path, error) from error
        assert isinstance(stream, av.VideoStream)
        self._stream = stream
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = "yuv420p"
        self._stream.time_base = self._stream.codec_context.time_base = _TIME_BASE
        self._stream.thread_count = 1
        _describe_colours(self._stream.codec_context)
        self._open_encoder()

    def add(self, image: Any, source_ns: int) -> None:
        """Appends an RGB image at its source time; images of the same millisecond are put one millisecond apart."""
        frame = av.VideoFrame.from_ndarray(
            np.ascontiguousarray(image[: self._stream.height, : self._stream.width]), format="rgb24"
        )
        self._last = max(self._last + 1, (source_ns - self._start_ns) // 1_000_000)
        frame.pts, frame.time_base = self._last, _TIME_BASE
        self._mux(frame)

    def close(self) -> None:
        """Writes the frames that the encoder still holds, and closes the file."""
        self._mux(None)

    def _open_encoder(self) -> None:
        try:
            with unchanged_scheduling():  # SVT-AV1 would take the highest real-time priority if run as root.
                self._stream.codec_context.open()
        except (av.FFmpegError, OSError, ValueError) as error:
            raise write_error(self.path, error) from error

    def _mux(self, frame: av.VideoFrame | None) -> None:
        try:
            for packet in self._stream.encode(frame):
                self._container.mux(packet)
            if frame is None:
                self._container.close()
        except (av.FFmpegError, OSError, ValueError) as error:
            raise write_error(self.path, error) from error


def _usable_format(codec: VideoCodec) -> VideoFormat:
    """Returns the format of a codec, after checking that PyAV has its encoder."""
    # SVT-AV1 prints thirty lines per video by default, and only this variable stops it.
    os.environ.setdefault("SVT_LOG", "1")
    if not _has_encoder(codec):
        usable = [str(other) for other in VideoCodec if _has_encoder(other)]
        raise SinkError(
            f"video codec {codec} needs the encoder {VIDEO_FORMATS[codec].encoder}, which PyAV {av.__version__} here "
            f"does not have: choose another --video-codec ({', '.join(usable) or 'none is available'}) or --sink"
        )
    return VIDEO_FORMATS[codec]


def _has_encoder(codec: VideoCodec) -> bool:
    try:
        av.Codec(VIDEO_FORMATS[codec].encoder, "w")
    except av.codec.codec.UnknownCodecError:
        return False
    return True


def _describe_colours(context: Any) -> None:
    """Stores the colour conversion that FFmpeg applies to RGB: browsers guess it if it is missing."""
    context.colorspace = Colorspace.ITU601
    context.color_range = ColorRange.MPEG
    context.color_primaries = ColorPrimaries.BT709
    context.color_trc = ColorTrc.BT709

"""Video codecs of the video sink: encoder, encoder settings and container of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class VideoCodec(StrEnum):
    """Codec of an overlay video."""

    VP9 = "vp9"
    AV1 = "av1"
    H264 = "h264"


@dataclass(frozen=True, slots=True)
class VideoFormat:
    """How FFmpeg writes one codec."""

    encoder: str  # Name in FFmpeg.
    encoder_options: Mapping[str, str]
    suffix: str  # Selects the container.
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

"""Encodes small videos with FFmpeg's encoders, as packets, files or messages of a bag."""

import shutil
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import msgpack
import numpy as np
import numpy.typing as npt

from rosbag_tools.messages.ros_types import own_types
from rosbag_tools.records import Serialization, TopicChannel
from rosbag_tools.writer import BagWriter
from shared.imaging.opencv import cv2

WIDTH, HEIGHT = 160, 96
START_NS = 1_700_000_000_000_000_000
_STORED = Path(__file__).parents[1] / "data" / "video"
PERIOD_NS = 100_000_000
DELAY_NS = 3_000_000  # From the stamp of a frame to its recording.
COMPRESSED_VIDEO = "foxglove_msgs/msg/CompressedVideo"

# Encoders of streams without reordered frames, with the name of their codec. A key frame every ten frames.
LOW_DELAY: dict[str, tuple[str, dict[str, str]]] = {
    "h264": ("libx264", {"tune": "zerolatency", "preset": "ultrafast"}),
    "h265": ("libx265", {"tune": "zerolatency", "x265-params": "log-level=none"}),
    "vp9": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "lag-in-frames": "0"}),
    "av1": ("libsvtav1", {"preset": "12", "svtav1-params": "pred-struct=1:lookahead=0"}),  # Encoded in advance.
}
REORDERED = ("libx264", {"bf": "2", "x264-params": "log-level=none"})


class StreamPacket(NamedTuple):
    """An encoded frame: its data and its position in the order of presentation."""

    data: bytes
    pts: int


def picture(index: int, width: int = WIDTH, height: int = HEIGHT) -> npt.NDArray[np.uint8]:
    """Returns a picture of a moving texture, rgb8, that differs for each index."""
    rng = np.random.default_rng(7)
    texture = cv2.GaussianBlur(rng.integers(0, 255, (height + 128, width + 256, 3), np.uint8), (0, 0), 3)
    texture = cv2.normalize(texture, texture, 0, 255, cv2.NORM_MINMAX)
    return np.ascontiguousarray(texture[index : index + height, 2 * index : 2 * index + width])


def encode(
    encoder: str, options: Mapping[str, str], frames: int = 30, size: tuple[int, int] = (WIDTH, HEIGHT), first: int = 0
) -> list[StreamPacket]:
    """Encodes pictures with headers in the stream, in the order of decoding.

    The encoder SVT-AV1 does not always return on a busy machine, so its packets were stored.
    """
    if encoder == "libsvtav1":
        assert (size, first) == ((WIDTH, HEIGHT), 0)
        return [StreamPacket(*packet) for packet in msgpack.unpackb((_STORED / "av1.msgpack").read_bytes())][:frames]
    context: Any = av.CodecContext.create(encoder, "w")
    context.width, context.height = size
    context.pix_fmt, context.gop_size, context.thread_count = "yuv420p", 10, 1
    context.time_base, context.framerate = Fraction(1, 10), Fraction(10)
    context.options = dict(options)
    packets = []
    for index in (*range(frames), None):
        frame = None
        if index is not None:
            frame = av.VideoFrame.from_ndarray(picture(first + index, *size), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 10)
        packets += [StreamPacket(bytes(packet), packet.pts) for packet in context.encode(frame)]
    return packets


def write_file(
    path: Path, encoder: str, options: Mapping[str, str], frames: int = 30, pix_fmt: str = "yuv420p"
) -> None:
    """Encodes pictures into a file of the kind that its name says."""
    if encoder == "libsvtav1":  # See `encode`; the file has 30 frames.
        assert path.suffix == ".mp4"
        shutil.copyfile(_STORED / "av1.mp4", path)
        return
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(encoder, rate=10, options=dict(options))
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = WIDTH, HEIGHT, pix_fmt, 10
        stream.codec_context.thread_count = 1
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(index), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def video_message(wire: Serialization, data: bytes, stamp_ns: int, video_format: str) -> bytes:
    """Returns a serialized CompressedVideo."""
    types: Any = own_types(wire)
    time = types.types["builtin_interfaces/msg/Time"](*divmod(stamp_ns, 1_000_000_000))
    message = types.types[COMPRESSED_VIDEO](time, "cam", np.frombuffer(data, np.uint8), video_format)
    return _serialized(types, message, COMPRESSED_VIDEO, wire)


def packet_message(wire: Serialization, packet: StreamPacket, stamp_ns: int, encoding: str) -> bytes:
    """Returns a serialized FFMPEGPacket."""
    types: Any = own_types(wire)
    name = "ffmpeg_image_transport_msgs/msg/FFMPEGPacket"
    time = types.types["builtin_interfaces/msg/Time"](*divmod(stamp_ns, 1_000_000_000))
    sequence = (0,) if wire is Serialization.ROS1 else ()
    header = types.types["std_msgs/msg/Header"](*sequence, time, "cam")
    data = np.frombuffer(packet.data, np.uint8)
    message = types.types[name](header, WIDTH, HEIGHT, encoding, packet.pts, 0, False, data)  # noqa: FBT003 (big-endian)
    return _serialized(types, message, name, wire)


def write_bag(
    path: Path,
    messages: Sequence[tuple[int, bytes]],
    *,
    message_type: str = COMPRESSED_VIDEO,
    topic: str = "/cam/video",
) -> None:
    """Writes serialized messages with their recording times; a .bag is ROS 1, a folder ROS 2."""
    with BagWriter(path) as writer:
        channel = TopicChannel(topic, message_type, writer.format.wire)
        for time_ns, data in messages:
            writer.write_raw(channel, data, time_ns, own_types(writer.format.wire))


def write_video(path: Path, video_format: str, packets: Sequence[bytes], **options: Any) -> None:
    """Writes packets as CompressedVideo, one each PERIOD_NS; None is left out."""
    wire = Serialization.ROS1 if path.suffix == ".bag" else Serialization.CDR
    stamps = [START_NS + index * PERIOD_NS for index in range(len(packets))]
    messages = [
        (stamp_ns + DELAY_NS, video_message(wire, data, stamp_ns, video_format))
        for stamp_ns, data in zip(stamps, packets, strict=True)
    ]
    write_bag(path, messages, **options)


def _serialized(types: Any, message: object, name: str, wire: Serialization) -> bytes:
    serialize = types.serialize_ros1 if wire is Serialization.ROS1 else types.serialize_cdr
    return bytes(serialize(message, name))

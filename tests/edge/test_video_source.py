"""Videos of strangers: damaged, rotated, joined and trimmed ones give the right frames, or a row with a reason."""

import re
import struct
from collections.abc import Callable, Collection
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np
import pytest

from edge.sources.source import SourceError
from edge.sources.video import VideoSource
from shared.imaging.frames import Frame, UnreadableFrame
from shared.imaging.opencv import cv2
from tests.support.video_streams import HEIGHT, WIDTH, picture, write_file

Frames = list[Frame | UnreadableFrame]

# Encoder, options, suffix, pixel format: every codec and container that cameras write.
KINDS = {
    "mjpeg.avi": ("mjpeg", {}, "yuvj420p"),
    "mjpeg.mov": ("mjpeg", {}, "yuvj420p"),
    "h264.mp4": ("libx264", {"bf": "0"}, "yuv420p"),
    "h264.avi": ("libx264", {"bf": "0"}, "yuv420p"),
    "h264_reordered.mp4": ("libx264", {"bf": "2"}, "yuv420p"),
    "h264_reordered.mkv": ("libx264", {"bf": "2"}, "yuv420p"),
    "h264_reordered.ts": ("libx264", {"bf": "2"}, "yuv420p"),
    "h264_reordered.avi": ("libx264", {"bf": "2"}, "yuv420p"),
    "h264_open.mp4": ("libx264", {"x264-params": "open-gop=1:bframes=3:keyint=10:min-keyint=10"}, "yuv420p"),
    "h264_stripes.mp4": ("libx264", {"x264-params": "intra-refresh=1:bframes=0:keyint=10"}, "yuv420p"),
    "h264_interlaced.mp4": ("libx264", {"x264-params": "interlaced=1"}, "yuv420p"),
    "hevc.mp4": ("libx265", {"x265-params": "log-level=none"}, "yuv420p"),
    "hevc_10bit.mkv": ("libx265", {"x265-params": "log-level=none"}, "yuv420p10le"),
    "vp8_hidden.webm": ("libvpx", {"deadline": "good", "lag-in-frames": "16", "auto-alt-ref": "1"}, "yuv420p"),
    "vp9_hidden.webm": ("libvpx-vp9", {"deadline": "good", "cpu-used": "4", "lag-in-frames": "16"}, "yuv420p"),
    "av1.mp4": ("libsvtav1", {"preset": "12"}, "yuv420p"),
    "mpeg4.avi": ("mpeg4", {"bf": "2"}, "yuv420p"),
    "mpeg2.mpg": ("mpeg2video", {"bf": "2"}, "yuv420p"),
    "ffv1.mkv": ("ffv1", {}, "gray"),
    "png.mov": ("png", {}, "rgba"),
    "prores.mov": ("prores_ks", {}, "yuv422p10le"),
}


def read(path: Path, **options: Any) -> Frames:
    """Plays a video."""
    return list(VideoSource(path, **options).frames())


@cache
def encoded(kind: str, frames: int) -> bytes:
    """Returns a file of a kind."""
    encoder, options, pix_fmt = KINDS[kind]
    with TemporaryDirectory() as folder:
        path = Path(folder) / kind
        write_file(path, encoder, options, frames, pix_fmt)
        return path.read_bytes()


def make(folder: Path, kind: str, frames: int = 30) -> Path:
    """Writes a video of a kind."""
    path = folder / kind
    path.write_bytes(encoded(kind, frames))
    return path


def copy(
    whole: Path, target: Path, *, left_out: Collection[int] = (), later: Fraction = Fraction(0), **options: str
) -> Path:
    """Copies the packets of a video into another container, some left out, all later by some seconds; returns it."""
    with av.open(str(whole)) as source, av.open(str(target), "w", options=options) as container:
        template = source.streams.video[0]
        assert template.time_base is not None
        shift = round(later / template.time_base)
        stream = container.add_stream_from_template(template)
        for index, packet in enumerate(source.demux(video=0)):
            if index in left_out or not packet.size or packet.pts is None or packet.dts is None:
                continue
            packet.stream, packet.pts, packet.dts = stream, packet.pts + shift, packet.dts + shift
            container.mux(packet)
    return target


def damage(path: Path, number: int, change: Callable[[int], bytes]) -> None:
    """Overwrites the middle of a packet."""
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    position, size = packets[number]
    assert position is not None
    data = bytearray(path.read_bytes())
    begin = position + min(24, max(8, size // 4))  # Behind the header that says what the packet is.
    data[begin : position + size] = change(position + size - begin)
    path.write_bytes(data)


def noise(size: int) -> bytes:
    """Returns random bytes."""
    return np.random.default_rng(1).bytes(size)


def lost(frames: Frames) -> list[int]:
    """Returns the indices of the frames without pixels."""
    return [frame.index for frame in frames if isinstance(frame, UnreadableFrame)]


def assert_in_order(frames: Frames) -> None:
    """Checks that indices and times increase."""
    assert [frame.index for frame in frames] == list(range(len(frames)))
    assert all(earlier.stamp_ns < later.stamp_ns for earlier, later in pairwise(frames))


@pytest.mark.parametrize("kind", KINDS)
def test_intact_videos_give_the_frames_of_ffmpeg(tmp_path: Path, kind: str) -> None:
    """Decoding packet by packet changes neither pixels nor times; hidden frames are no frames."""
    path = make(tmp_path, kind)
    with av.open(str(path)) as container:
        expected = [image.to_ndarray(format="bgr24") for image in container.decode(video=0)]
    frames = read(path)
    assert lost(frames) == []
    assert len(frames) == len(expected) == 30
    assert_in_order(frames)
    for frame, pixels in zip(frames, expected, strict=True):
        assert isinstance(frame, Frame)
        assert frame.pixels.flags.c_contiguous
        np.testing.assert_array_equal(frame.pixels, pixels)


@pytest.mark.parametrize("kind", ["mjpeg.avi", "mjpeg.mov", "png.mov", "prores.mov"])
def test_an_undecodable_packet_costs_one_frame_if_frames_are_independent(tmp_path: Path, kind: str) -> None:
    """The twelve frames after it were gone, with exit code 0."""
    path = make(tmp_path, kind)
    intact = read(path)
    damage(path, 13, noise)
    frames = read(path)
    assert lost(frames) == [13]
    assert_in_order(frames)
    assert [frame.stamp_ns for frame in frames] == [frame.stamp_ns for frame in intact]


@pytest.mark.parametrize("kind", ["h264.mp4", "h264.avi", "h264_open.mp4", "av1.mp4", "mpeg4.avi", "ffv1.mkv"])
def test_frames_that_depend_on_an_undecodable_packet_are_lost_by_name(tmp_path: Path, kind: str) -> None:
    """FFmpeg fills what is missing from other frames: no such picture is played."""
    path = make(tmp_path, kind)
    intact = read(path)
    damage(path, 13, noise)
    frames = read(path)
    assert 1 <= len(lost(frames)) <= 18
    assert min(lost(frames)) >= 8
    assert_in_order(frames)
    assert len(frames) == 30
    true = {frame.stamp_ns: frame.pixels for frame in intact if isinstance(frame, Frame)}
    for frame in frames:
        if isinstance(frame, Frame):
            np.testing.assert_array_equal(frame.pixels, true[frame.stamp_ns])
        else:
            assert frame.reason


def test_only_one_frame_is_lost_with_a_frame_that_no_other_needs(tmp_path: Path) -> None:
    """Of a stream with reordered frames, H.264 and H.265 say which frames others need."""
    path = make(tmp_path, "hevc.mp4")
    with av.open(str(path)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    single = next(
        index for index, data in enumerate(packets) if index > 13 and (data[4] >> 1) % 2 == 0 and data[4] >> 1 < 16
    )
    damage(path, single, noise)
    assert len(lost(read(path))) <= 1


def test_the_frames_before_the_first_key_frame_are_lost_by_name(tmp_path: Path) -> None:
    """A stream that was cut out of another one starts between two key frames."""
    cut = copy(make(tmp_path, "h264.mp4"), tmp_path / "cut.mkv", left_out=range(5))
    frames = read(cut)
    assert lost(frames) == [0, 1, 2, 3, 4]
    assert all("first key frame" in frame.reason for frame in frames if isinstance(frame, UnreadableFrame))


def test_a_lost_h264_packet_is_found_by_its_number(tmp_path: Path) -> None:
    """Without it, the frames up to the next key frame would be drawn over the wrong picture."""
    cut = copy(make(tmp_path, "h264.mp4"), tmp_path / "cut.mkv", left_out=(13,))
    assert lost(read(cut)) == [13, 14, 15, 16, 17, 18]


def test_a_frame_that_the_recorder_dropped_is_counted(tmp_path: Path) -> None:
    """An AVI holds an empty packet instead, which FFmpeg skips."""
    path = tmp_path / "drops.avi"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
        for index in range(10):
            frame = av.VideoFrame.from_ndarray(picture(index), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 10)
            for packet in stream.encode(frame):
                empty = av.Packet(b"")
                empty.stream, empty.pts, empty.dts, empty.time_base = stream, packet.pts, packet.dts, packet.time_base
                container.mux(empty if index == 4 else packet)
    frames = read(path)
    assert len(frames) == 10
    (row,) = [frame for frame in frames if isinstance(frame, UnreadableFrame)]
    assert "declares 10 frames and holds 9" in row.reason
    assert frames[4].stamp_ns == 500_000_000  # The others keep their times.


@pytest.mark.parametrize("kind", ["h264.mp4", "mjpeg.avi", "h264_reordered.mp4"])
def test_every_frame_of_a_truncated_file_has_a_row(tmp_path: Path, kind: str) -> None:
    """The header of the file says how many there were."""
    path = make(tmp_path, kind)
    if kind.endswith("mp4"):  # The index comes first, as in files for the web.
        path = copy(path, tmp_path / "fast.mp4", movflags="faststart")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    frames = read(path)
    assert len(frames) == 30
    assert_in_order(frames)
    assert 3 <= len(lost(frames)) < 27
    assert lost(frames)[-1] == 29
    assert any("truncated" in frame.reason for frame in frames if isinstance(frame, UnreadableFrame))


def test_a_truncated_mkv_ends_with_an_error(tmp_path: Path) -> None:
    """It declares its length, but no number of frames."""
    path = tmp_path / "long.mkv"
    write_file(path, "libx264", {"bf": "0"}, 60)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    frames: Frames = []
    with pytest.raises(SourceError, match="truncated"):
        frames.extend(VideoSource(path).frames())
    assert list(VideoSource(path, duration_s=1.0).frames())


@pytest.mark.parametrize("kept", [0.5, 0.85])
def test_a_truncated_mkv_with_sound_ends_with_an_error(tmp_path: Path, kept: float) -> None:
    """The sound may be longer than the video: the duration of the video's own stream counts."""
    path = tmp_path / "sound.mkv"
    with av.open(str(path), "w") as container:
        video: Any = container.add_stream("libx264", rate=10, options={"bf": "0"})
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        sound: Any = container.add_stream("pcm_s16le", rate=8000)
        sound.layout = "mono"
        for index in range(80):
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
            silence.sample_rate, silence.pts = 8000, index * 800
            container.mux(sound.encode(silence))
            if index < 60:
                frame = av.VideoFrame.from_ndarray(picture(index), format="rgb24")
                frame.pts, frame.time_base = index, Fraction(1, 10)
                container.mux(video.encode(frame))
        container.mux(video.encode(None))
    assert len(read(path)) == 60
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    end = packets[round(60 * kept)].pos
    assert end is not None
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(SourceError, match="declares 6"):
        read(path)


@pytest.mark.parametrize("missing", [0, 3])
def test_a_hole_in_a_file_is_noted(tmp_path: Path, missing: int) -> None:
    """The frames are gone, and nothing else in the file shows it."""
    cut = copy(make(tmp_path, "h264.mp4"), tmp_path / "cut.mkv", left_out=range(15, 15 + missing))
    played = VideoSource(cut)
    assert len(list(played.frames())) == 30 - missing
    notes: Any = played.provenance["notes"]
    holes = [note for note in notes if "colour matrix" not in note]
    assert holes == ["about 3 frames are missing between 1.400 s and 1.800 s"] * bool(missing)


TURNS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "90": ((0, 1, -1, 0), lambda image: cv2.rotate(image, cv2.ROTATE_90_CLOCKWISE)),
    "180": ((-1, 0, 0, -1), lambda image: cv2.rotate(image, cv2.ROTATE_180)),
    "270": ((0, -1, 1, 0), lambda image: cv2.rotate(image, cv2.ROTATE_90_COUNTERCLOCKWISE)),
    "mirrored": ((-1, 0, 0, 1), lambda image: cv2.flip(image, 1)),
    "upside_down": ((1, 0, 0, -1), lambda image: cv2.flip(image, 0)),
    "transposed": ((0, 1, 1, 0), cv2.transpose),
    "other_diagonal": ((0, -1, -1, 0), lambda image: cv2.flip(cv2.transpose(image), -1)),
}


def turn(path: Path, matrix: tuple[float, ...]) -> None:
    """Writes the display matrix of an MP4's track header (ISO 14496-12, 8.3.2)."""
    data = bytearray(path.read_bytes())
    at = data.find(b"tkhd")
    at += 8 + (20 if data[at + 4] == 0 else 32) + 16
    a, b, c, d = (round(each * 65536) for each in matrix)
    data[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("mjpeg.mov", name) for name in TURNS), ("h264.mp4", "90"), ("hevc.mp4", "270"), ("av1.mp4", "90")],
)
def test_videos_are_played_upright(tmp_path: Path, kind: str, name: str) -> None:
    """Phones and mounted cameras write a rotation into the header, which players follow."""
    path = make(tmp_path, kind, frames=3)
    flat = read(path)
    matrix, turned = TURNS[name]
    turn(path, matrix)
    source = VideoSource(path)
    frames = list(source.frames())
    for frame, before in zip(frames, flat, strict=True):
        assert isinstance(frame, Frame)
        assert isinstance(before, Frame)
        assert frame.pixels.flags.c_contiguous
        np.testing.assert_array_equal(frame.pixels, turned(before.pixels))
    assert "upright" in str(source.provenance["notes"])
    if name in ("90", "180", "270") and kind != "av1.mp4":  # OpenCV has no decoder of AV1.
        shown: Any = cv2.VideoCapture(str(path)).read()[1]
        assert [shown.shape] * 3 == [frame.pixels.shape for frame in frames if isinstance(frame, Frame)]


@pytest.mark.parametrize("angle", ["90", "-90", "180", "45", "x"])
def test_the_tag_of_old_recorders_is_a_rotation(tmp_path: Path, angle: str) -> None:
    """Before display matrices, the rotation was a tag; one that is no quarter turn is ignored, as players do."""
    path = tmp_path / "old.mkv"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
        stream.metadata["rotate"] = angle
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(0), format="rgb24")))
        container.mux(stream.encode(None))
    (frame,) = read(path)
    assert isinstance(frame, Frame)
    assert frame.pixels.shape[:2] == ((WIDTH, HEIGHT) if "90" in angle else (HEIGHT, WIDTH))


@pytest.mark.parametrize("matrix", [(0.7071, 0.7071, -0.7071, 0.7071), (1, 0.5, 0, 1), (1, 0, 0, 0)])
def test_an_odd_angle_is_refused_by_name(tmp_path: Path, matrix: tuple[float, ...]) -> None:
    """A picture that is neither upright nor as recorded would be guessed."""
    path = make(tmp_path, "mjpeg.mov", frames=3)
    turn(path, matrix)
    frames = read(path)
    assert lost(frames) == [0, 1, 2]
    assert all("odd angle" in frame.reason for frame in frames if isinstance(frame, UnreadableFrame))


def test_joined_recordings_are_played_one_after_the_other(tmp_path: Path) -> None:
    """Times start again at the joint, where the container marks the last packet as incomplete."""
    write_file(tmp_path / "one.ts", "libx264", {"bf": "0"}, 10)
    joined = tmp_path / "joined.ts"
    joined.write_bytes(2 * (tmp_path / "one.ts").read_bytes())
    source = VideoSource(joined)
    frames = list(source.frames())
    assert_in_order(frames)
    assert len(frames) == 20
    assert "its times start again" in str(source.provenance["notes"])
    assert set(lost(frames)) <= {8, 9}


def test_the_picture_size_may_change_within_the_file(tmp_path: Path) -> None:
    """A camera that restarts with another mode."""
    parts = []
    for number, (width, height) in enumerate([(160, 96), (96, 64)]):
        part = tmp_path / f"{number}.ts"
        with av.open(str(part), "w") as container:
            stream: Any = container.add_stream("libx264", rate=10, options={"bf": "0"})
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for index in range(6):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(index, width, height), format="rgb24")))
            container.mux(stream.encode(None))
        parts.append(part.read_bytes())
    joined = tmp_path / "joined.ts"
    joined.write_bytes(b"".join(parts))
    shapes = [frame.pixels.shape[:2] for frame in read(joined) if isinstance(frame, Frame)]
    assert shapes[:3] == [(96, 160)] * 3
    assert shapes[-6:] == [(64, 96)] * 6


def test_a_cover_picture_is_not_the_video_and_two_streams_are_said(tmp_path: Path) -> None:
    """Music players and phones add a still picture as a stream."""
    path = tmp_path / "two.mkv"
    with av.open(str(path), "w") as container:
        streams: list[Any] = [container.add_stream("mjpeg", rate=10) for _ in range(3)]
        for stream, size in zip(streams, (32, 64, 96), strict=True):
            stream.width = stream.height = size
            stream.pix_fmt = "yuvj420p"
        streams[0].disposition = av.stream.Disposition.attached_pic
        for stream in streams:
            frame = av.VideoFrame.from_ndarray(np.full((stream.height, stream.width, 3), 99, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    source = VideoSource(path)
    frames = list(source.frames())
    assert all(isinstance(frame, Frame) and frame.pixels.shape[0] in (32, 64) for frame in frames)
    assert "video streams" in str(source.provenance["notes"])


def test_an_offset_counts_from_the_first_frame(tmp_path: Path) -> None:
    """A transport stream starts at 1.4 s: skipping one second skipped nothing."""
    path = make(tmp_path, "h264_reordered.ts")
    frames = read(path, start_offset_s=1.0, duration_s=0.5)
    assert len(frames) == 5
    whole = read(path)
    assert [frame.stamp_ns for frame in frames] == [frame.stamp_ns for frame in whole[10:15]]


def test_pictures_beyond_the_limit_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    """A header can declare any size."""
    path = tmp_path / "huge.mkv"
    write_file(path, "ffv1", {}, 1)
    data = path.read_bytes()
    for name, value in ((b"\xb0", WIDTH), (b"\xba", HEIGHT)):
        field = name + (b"\x81" + bytes([value]))
        assert field in data
        data = data.replace(field, name + b"\x81" + b"\xff")
    path.write_bytes(data)
    read(path)  # The decoder's own header counts, and the decoder has the same limit.


@pytest.mark.parametrize("kind", ["h264.mp4", "h264_reordered.mp4", "hevc.mp4"])
def test_a_trimmed_video_starts_where_its_edit_list_says(tmp_path: Path, kind: str) -> None:
    """Editors keep the key frame before the cut and hide it: the hidden frames are no frames, and none is lost."""
    whole, start = make(tmp_path, kind), Fraction(-13, 10)
    trimmed = copy(whole, tmp_path / "trimmed.mp4", later=start, avoid_negative_ts="disabled", use_editlist="1")
    with av.open(str(trimmed)) as container:
        expected = [image.to_ndarray(format="bgr24") for image in container.decode(video=0)]
    frames = read(trimmed)
    assert lost(frames) == []
    assert len(frames) == len(expected) == 17
    for frame, pixels in zip(frames, expected, strict=True):
        assert isinstance(frame, Frame)
        np.testing.assert_array_equal(frame.pixels, pixels)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        (b"\0\0\0\x10ftypisom\0\0\0\0\0\1\0\0mdat" + bytes(99), "has no index .moov."),
        (b"\0\0\0\1ftyp" + bytes(8) + b"isom" * 20, "has no index .moov."),  # A box of 0 bytes.
        (b"<html>" + bytes(99), "cannot be played"),
    ],
)
def test_a_file_without_a_video_is_named_for_what_it_is(tmp_path: Path, content: bytes, reason: str) -> None:
    """A recorder that dies leaves an MP4 without index, and a clone without LFS leaves pointers."""
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=reason):
        VideoSource(path)


@pytest.mark.parametrize(
    ("matrix", "transfer", "aspect", "note"),
    [
        (1, 1, 1, ""),
        (9, 16, 1, "HDR .PQ."),
        (9, 18, 1, "HDR .HLG."),
        (2, 2, 1, "BT.601 is assumed"),
        (1, 1, Fraction(4, 3), "pixels are 4/3 as wide as high"),
    ],
)
def test_what_a_header_leaves_open_is_noted(
    tmp_path: Path, matrix: int, transfer: int, aspect: Fraction, note: str
) -> None:
    """The pictures are read as SDR with square pixels."""
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=10)
        context = stream.codec_context
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        context.colorspace, context.color_trc, context.sample_aspect_ratio = matrix, transfer, aspect
        for _ in range(2):
            container.mux(stream.encode(av.VideoFrame(64, 48, "yuv420p")))
        container.mux(stream.encode(None))
    source = VideoSource(path)
    assert len(list(source.frames())) == 2
    found: Any = source.provenance.get("notes", [])
    assert len(found) == bool(note)
    assert not note or re.search(note, found[0])

"""The video source: the frames of a video file, with their times, including those that cannot be decoded."""

import logging
import sys
from bisect import insort
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import av
from av.stream import Disposition

from edge.sources.source import SourceError
from shared import clock
from shared.errors import reason_of
from shared.files import check_file, file_sha256, missing_content, open_file
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.imaging.video_decoder import VIDEO_ERRORS, Decoded, VideoDecoder, most_pixels

_log = logging.getLogger(__name__)

_TAGS = {"90": 90, "180": 180, "270": 270, "-90": 270, "-180": 180, "-270": 90}
_TURNED = "its pictures are turned upright, as its header says"
_RESTARTED = "its times start again, as in joined recordings: the frames behind that have no times of their own"

_HELD_LOSSES = 64  # Lost frames that wait for the next picture, whose time shows their place.
_MAX_BOXES = 1000  # Maximum number of boxes of an MP4 file that are searched for its index.
_MAX_MISSING = 1 << 16  # Frames behind the end of a truncated file that get a row each.
_MIN_MISSING_NS = 2_000_000_000  # A shorter gap at the end of a file can come from rounding,
_MIN_TAGGED_NS = 500_000_000  # and a shorter gap at the end of a stream from a long last frame.
_RESTART_NS = 500_000_000  # Lost frames can be out of order by less than this.
_STEADY, _JITTER = 8, 0.1  # The rate is constant after 8 periods that differ by less than 10 %.


class VideoSource:
    """The first video stream of a file, upright, with its frame times, as bgr8. `close` need not be called.

    A packet that cannot be decoded costs its own frame and those that depend on it, up to the next key frame at most. Each
    is yielded as an UnreadableFrame with its time.

    Raises:
        SourceError: the file cannot be played, or `topics` are given.
    """

    def __init__(
        self, path: Path, *, topics: Sequence[str] = (), start_offset_s: float = 0.0, duration_s: float | None = None
    ) -> None:
        if topics:
            raise SourceError(f"video {path} has no topics: leave --topic out")
        self._path = path
        self._start_ns = round(start_offset_s * 1e9)
        self._end_ns = None if duration_s is None else self._start_ns + round(duration_s * 1e9)
        self._notes: list[str] = []
        self._time_ns = self._period_ns = self._steady = 0  # `_steady`: number of frames since the rate changed.
        self._has_hole = False
        with self._opened() as container:
            streams = _video_streams(container)
            is_whole = not self._start_ns and self._end_ns is None
            self._frame_count = streams[0].frames if is_whole and streams[0].frames else None
            if len(streams) > 1:
                self._note(f"the first of {len(streams)} video streams is played")

    @property
    def frame_count(self) -> int | None:
        """See FrameSource. None if the file does not contain the number, or only a part of it is played."""
        return self._frame_count

    @property
    def provenance(self) -> dict[str, str | int | float | list[str]]:
        """See FrameSource. `notes` can grow while frames are read."""
        identity: dict[str, str | int | float | list[str]] = {
            "kind": "video",
            "path": self._path.name,
            "sha256": file_sha256(self._path),
        }
        return identity | ({"notes": self._notes} if self._notes else {})

    def frames(self) -> Iterator[Frame | UnreadableFrame]:
        """See FrameSource. Frames that an MP4 or AVI file declares and lacks are yielded as UnreadableFrame.

        Raises:
            SourceError: after the last frame, if an MKV or WebM file ends before the length that it declares, or if more
                than 65,536 frames are missing.
        """
        index = 0
        stamp_ns = -1
        self._time_ns = 0
        started_ns = clock.now_ns()
        with self._opened() as container:
            stream = _video_streams(container)[0]
            origin_ns = _ns(stream.start_time, stream) or 0
            for time_ns, decoded in self._decoded(container, stream):
                # A frame without a time follows the previous one at once; times never decrease.
                stamp_ns = max(stamp_ns + 1, time_ns - min(0, origin_ns))
                self._check_clock(time_ns - min(0, origin_ns))
                passed_ns = stamp_ns - max(0, origin_ns)
                if passed_ns < self._start_ns:
                    continue
                if self._end_ns is not None and passed_ns >= self._end_ns:
                    return
                camera, read_ns = self._path.name, clock.now_ns() - started_ns
                if decoded.pixels is None:
                    yield UnreadableFrame(camera, index, stamp_ns, stamp_ns, read_ns, decoded.reason)
                else:
                    yield Frame(decoded.pixels, Layout.BGR8, camera, index, stamp_ns, stamp_ns, read_ns)
                index += 1
                started_ns = clock.now_ns()

    def _check_clock(self, time_ns: int) -> None:
        """Notes the first hole in a file with a constant rate, and a clock that starts again."""
        step_ns, self._time_ns = time_ns - self._time_ns, time_ns
        if step_ns < -_RESTART_NS and _RESTARTED not in self._notes:
            self._note(_RESTARTED)
        if abs(step_ns - self._period_ns) < _JITTER * step_ns:
            self._steady += 1
        elif self._steady >= _STEADY and step_ns > 1.5 * self._period_ns and not self._has_hole:
            self._has_hole = True
            missing, before_ns = round(step_ns / self._period_ns) - 1, time_ns - step_ns
            self._note(f"about {missing} frames are missing between {before_ns / 1e9:.3f} s and {time_ns / 1e9:.3f} s")
        else:
            self._steady, self._period_ns = 0, step_ns

    def close(self) -> None:
        """See FrameSource. No file stays open."""

    def _decoded(self, container: Any, stream: Any) -> Iterator[tuple[int, Decoded]]:
        """Yields the time in ns and the result of every frame, in the order of presentation."""
        decoder = VideoDecoder(stream.codec_context, _angle(stream))
        packets = container.demux(stream)
        losses: list[Decoded] = []
        count = latest_ns = 0
        packet: Any = True
        while packet is not None:
            packet, error = _next(packets)
            results = decoder.finish() if packet is None else decoder.decode(count, packet)
            count += packet is not None
            if decoder.is_turned and _TURNED not in self._notes:
                self._notes.append(_TURNED)
            for doubt in decoder.doubts or ():
                if doubt not in self._notes:
                    self._note(doubt)
            for frame in results:
                if frame.pixels is None:
                    insort(losses, frame, key=attrgetter("place"))
                    continue
                while losses and losses[0].place <= frame.place:
                    yield _ns(losses[0].time, stream) or 0, losses.pop(0)
                latest_ns = _ns(frame.time, stream) or 0
                yield latest_ns, frame
            while len(losses) > (0 if packet is None else _HELD_LOSSES):
                latest_ns = _ns(losses[0].time, stream) or 0
                yield latest_ns, losses.pop(0)
        yield from self._missing(container, stream, count, latest_ns, error)

    def _missing(
        self, container: Any, stream: Any, count: int, latest_ns: int, error: str
    ) -> Iterator[tuple[int, Decoded]]:
        """Yields the frames that the file declares but does not contain, because it is truncated."""
        is_mp4 = "mp4" in container.format.name
        declared = len(stream.index_entries) if is_mp4 else stream.frames if container.format.name == "avi" else 0
        period_ns = round(1e9 / stream.average_rate) if stream.average_rate else 1
        missing = max(declared - count, bool(error))
        reason = (
            error
            or f"the file declares {declared} frames and holds {count}: it is truncated, or its recorder dropped some"
        )
        for number in range(min(missing, _MAX_MISSING)):
            yield latest_ns + (number + 1) * period_ns, Decoded(count + number, reason=reason)
        length_ns, least_ns = _tagged_ns(stream), _MIN_TAGGED_NS
        if not length_ns and len(container.streams) == 1:  # Another stream may be longer.
            length_ns, least_ns = (container.duration or 0) * 1000, _MIN_MISSING_NS
        is_short = "matroska" in container.format.name and length_ns - latest_ns > max(least_ns, 3 * period_ns)
        if missing > _MAX_MISSING or (is_short and count):
            raise SourceError(
                f"{self._path} is truncated: it ends after {count} frames at {latest_ns / 1e9:.3f} s, and declares "
                f"{declared or length_ns / 1e9} {'frames' if declared else 's'}: copy or record it again"
            )

    def _note(self, text: str) -> None:
        self._notes.append(text)
        _log.warning("%s: %s", self._path.name, text)

    def _opened(self) -> Any:
        try:
            check_file(self._path)
        except OSError as error:
            raise SourceError(f"{self._path} cannot be played: {error.strerror}") from error
        try:
            container: Any = av.open(str(self._path))
        except VIDEO_ERRORS as error:
            problem = (
                _unfinished(self._path) or f"cannot be played: {reason_of(error)}: give an MP4, MKV, AVI or WebM file"
            )
            raise SourceError(f"{self._path} {problem}") from error
        streams = _video_streams(container)
        fault = ""
        if not streams:
            fault = "holds no video stream"
        elif streams[0].codec_context is None:
            fault = "has a video codec that FFmpeg does not know: convert it to H.264"
        elif streams[0].width * streams[0].height > (most := most_pixels(streams[0].codec_context)):
            fault = f"has pictures of {streams[0].width}×{streams[0].height}, more than {most} pixels: make it smaller"
        if fault:
            container.close()
            raise SourceError(f"{self._path} {fault}")
        return container


def _unfinished(path: Path) -> str:
    """Returns why a file is no video if it is a placeholder or an MP4 without index; otherwise an empty text."""
    with open_file(path) as file:
        head = file.read(64)
        if problem := missing_content(head):
            return problem
        is_mp4, at = head[4:8] in (b"ftyp", b"mdat", b"wide", b"free"), 0
        for _ in range(_MAX_BOXES if is_mp4 else 0):
            if len(head) < 8 or head[4:8] == b"moov":  # Size and name; size 1: 64 bits follow.
                break
            size = int.from_bytes(head[:4])
            at += max(8, int.from_bytes(head[8:16]) if size == 1 else size or sys.maxsize)
            file.seek(min(at, path.stat().st_size))
            head = file.read(16)
        if head[4:8] == b"moov":
            return ""
    remedy = "record it again, or mend it by a tool such as untrunc"
    return f"has no index (moov): its recording or copy was cut off; {remedy}" if is_mp4 else ""


def _video_streams(container: Any) -> list[Any]:
    """Returns the video streams, without cover pictures."""
    pictures = Disposition.attached_pic | Disposition.timed_thumbnails
    return [stream for stream in container.streams.video if not stream.disposition & pictures]


def _angle(stream: Any) -> int:
    """Returns the clockwise angle that old recorders wrote as a tag instead of a display matrix."""
    tag = stream.metadata.get("rotate") or stream.metadata.get("ROTATE", "0")
    return _TAGS.get(tag, 0)


def _tagged_ns(stream: Any) -> int:
    """Returns the duration that writers of MKV and WebM give each stream as a tag, or 0."""
    try:
        hours, minutes, seconds = map(float, stream.metadata.get("DURATION", "").split(":"))
        return round((hours * 3600 + minutes * 60 + seconds) * 1e9)
    except (ValueError, OverflowError):
        return 0


def _ns(time: int | None, stream: Any) -> int | None:
    base = stream.time_base
    return None if time is None else round(time * base.numerator / base.denominator * 1e9)


def _next(packets: Iterator[Any]) -> tuple[Any, str]:
    """Returns the next packet, or None at the end with the error that ended the file early, if any."""
    try:
        packet = next(packets, None)
    except VIDEO_ERRORS as error:
        return None, str(error)
    # PyAV marks the end by an empty packet without times.
    is_end = packet is None or (not packet.size and packet.dts is None and packet.pts is None)
    return (None if is_end else packet), ""

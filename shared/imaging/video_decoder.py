"""Decodes video packet by packet: each one becomes an upright picture, or is lost and the reason is given.

Packets of a file that are not shown give neither; every message of a topic does.

FFmpeg's decoders conceal damage: they fill what is missing from other frames and return a picture that was never recorded.
Here the first error ends the trust in the stream: what may depend on the lost packet is lost too, up to the next key frame.
Wrong bits that still form a valid stream cannot be found, because video has no checksums; nor can packets that are missing
from a VP9 or AV1 stream, or the end of an H.265 or VP8 frame.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import av
from av.sidedata.sidedata import Type as SideData
from av.video.reformatter import ColorTrc

from shared.errors import SkylaneError, suggestion
from shared.imaging.frames import Pixels
from shared.imaging.opencv import MAX_PIXELS, cv2
from shared.imaging.video_bitstream import MAX_VIDEO_PIXELS, Bitstream, PacketFacts, as_superframe

VIDEO_ERRORS = (av.FFmpegError, OSError, ValueError)

MAX_PACKET_BYTES = 1 << 25  # An encoded frame; cameras need less than a tenth.
_PLAIN_BITS = 12  # Of a pixel in 4:2:0 with 8 bits.
_LONGEST_DELAY = 64  # A packet without a picture is lost after as many packets; decoders hold back at most 16 frames.
_TOPIC_THREADS = 2  # Threads of a topic's AV1 decoder: a bag has several topics.
_OPTIONS = {"err_detect": "explode"}

_TOO_EARLY = "it comes before the first key frame of the stream"
_DEPENDENT = "a frame before it is lost, and no key frame has come since"
_REPEATED = "it repeats the message before it"
_NO_START_CODE = "it has no start code: only streams in the layout of Annex B are supported"
_NO_PICTURE = "the decoder returns no picture for it"

# FFmpeg's decoder of each codec. Recorders also name a stream by its encoder.
_DECODERS = {
    **{codec: codec for codec in ("h264", "hevc", "vp8", "vp9", "mpeg4", "mjpeg")},
    **dict.fromkeys(("avc", "x264", "openh264"), "h264"),
    **dict.fromkeys(("h265", "x265"), "hevc"),
    **dict.fromkeys(("av1", "svtav1", "aom-av1", "rav1e"), "libdav1d"),
    "vpx": "vp8",
    "vpx-vp9": "vp9",
}
_STRICT_VP9 = "libvpx-vp9"  # It refuses truncated packets; FFmpeg's own decoder fills them.
_HDR = {ColorTrc.SMPTE2084: "PQ", ColorTrc.ARIB_STD_B67: "HLG"}
_NO_MATRIX = 2  # FFmpeg's AVCOL_SPC_UNSPECIFIED.
_TURNS = {90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}  # Clockwise angle → signs of the display matrix.
_UPRIGHT = (1, 0, 0, 1)
_NO_TIME, _LAST_TIME = -1 << 63, 1 << 60
_SMALL_BYTES = 16  # An MPEG-4 frame without changes.
_TOLERANCE = 0.02  # Tolerance of the elements of a display matrix, relative to the largest.


def most_pixels(context: Any) -> int:
    """Returns the most pixels that a picture of a stream may have: decoders keep up to 16 pictures that others refer to."""
    return MAX_PIXELS if context.codec.canonical_name == "mjpeg" else MAX_VIDEO_PIXELS


class UnknownCodecError(SkylaneError):
    """A stream has a codec that is not supported."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result for one packet: a picture, or the reason why the packet has no picture."""

    index: int  # The packet's index.
    pixels: Pixels | None = None  # bgr8, H×W×3, upright, C-contiguous.
    reason: str = ""
    time: int | None = None  # Presentation time (without one, decoding time) in the stream's unit.
    place: tuple[int, int] = (0, 0)  # Sorts the frames of a stream by their presentation.


class _Pending(NamedTuple):
    """A packet without a result."""

    place: tuple[int, int]  # The round of the stream's clock, and the time of presentation in it.
    dts: int | None  # Time of decoding.
    is_marked: bool  # A key frame according to the file.
    is_key: bool  # A key frame according to its header, if that is known.
    is_disposable: bool  # No other frame needs it.
    is_pictureless: bool  # An undamaged packet without a picture.


def is_whole_jpeg(data: bytes) -> bool:
    """Returns False for a JPEG that ends before its picture, which other decoders complete in grey."""
    context: Any = av.CodecContext.create("mjpeg", "r")
    context.options = {**_OPTIONS, "max_pixels": str(most_pixels(context))}
    try:
        context.decode(av.Packet(data))
    except VIDEO_ERRORS as error:
        return not isinstance(error, av.InvalidDataError)
    return True


class VideoDecoder:
    """The decoder of one stream. It returns pictures in the order of their presentation.

    Args:
        context: A decoder of PyAV that is not open yet.
        angle: Degrees by which pictures without a display matrix are turned clockwise: 0, 90, 180 or 270.

    Attributes:
        is_turned: Whether a picture was rotated or mirrored.
        doubts: What the first picture says about itself that is not regarded, or leaves out; one text each.
    """

    def __init__(self, context: Any, angle: int = 0) -> None:
        context.options = {**context.options, **_OPTIONS, "max_pixels": str(most_pixels(context))}
        if context.name != "libdav1d":
            context.thread_count = 1  # FFmpeg's threads drop errors of slices, and do not look for missing ones.
        context.copy_opaque = True
        self._context = context
        self._codec = context.codec.canonical_name
        self._bitstream = Bitstream(self._codec, context.extradata)
        self._signs = _TURNS.get(angle, _UPRIGHT)
        self.is_turned = False
        self.doubts: tuple[str, ...] | None = None  # None before the first picture.
        # With one thread a frame, only FFmpeg's AV1 decoder holds back pictures that are not reordered.
        self._is_immediate = context.codec.name != "libdav1d"
        self._is_topic = False  # Every packet is a message, which needs a result.
        self._last: Any = av.Packet(b"")  # The packet before.
        self._late = 0  # Pictures that the decoder holds back longer, because it failed when they were due.
        self._broken_at: int | None = None  # A lost packet that later ones need.
        self._waiting = "" if context.codec.intra_only else _TOO_EARLY  # Why packets before a key frame are lost.
        self._round = 0  # Times start again where recordings were joined.
        self._last_dts = _NO_TIME
        self._key = self._latest = (
            0,
            _NO_TIME,
        )  # Places of the last key frame that ended a loss, and of the last frame.
        self._is_reordered = False  # Times tell the order of presentation: they differ from the order of the packets.
        self._pending: dict[int, _Pending] = {}
        self._results: list[Decoded] = []

    @classmethod
    def named(cls, name: str, data: Any) -> Self:
        """Creates the decoder of a topic's stream from the name of its codec or encoder, and its first packet.

        Raises:
            UnknownCodecError: the codec is not supported.
        """
        known = name.lower().replace(".", "").removeprefix("lib").partition("_")[0]
        if known not in _DECODERS:
            raise UnknownCodecError(f"video format {name[:40]!r} is not supported{suggestion(known, _DECODERS)}")
        decoder_name = _DECODERS[known]
        is_deep = bool(len(data) and data[0] & 0x10)  # The profile has more than 8 bits, which libvpx may not have.
        if decoder_name == "vp9" and not is_deep and _STRICT_VP9 in av.codecs_available:
            decoder_name = _STRICT_VP9
        context: Any = av.CodecContext.create(decoder_name, "r")
        if context.name == "libdav1d":
            context.thread_count = _TOPIC_THREADS
            context.options = {"max_frame_delay": "1"}
        decoder = cls(context)
        decoder._is_topic = decoder._is_immediate = True
        return decoder

    def decode(self, index: int, packet: Any) -> list[Decoded]:
        """Decodes a packet of PyAV, and returns the results that are known now, also those of earlier packets."""
        view = memoryview(packet)
        facts = self._bitstream.look(view) if view else PacketFacts(is_disposable=not self._is_topic)
        if (
            self._is_topic
            and view
            and (facts.is_numbered or packet.pts == self._last.pts)
            and view == memoryview(self._last)
        ):
            return [Decoded(index, reason=_REPEATED)]
        self._last = packet
        if facts.has_gap:
            self._restart()
        if not packet.is_discard and (self._is_topic or not facts.is_hidden):
            is_small = self._codec == "mpeg4" and len(view) < _SMALL_BYTES
            self._pending[index] = _Pending(
                self._place(packet),
                packet.dts,
                packet.is_keyframe,
                facts.is_key,
                facts.is_disposable,
                facts.is_hidden or is_small,
            )
        if fault := self._fault(index, packet, view):
            place = self._latest if index not in self._pending else self._pending[index].place
            self._lose(index, fault)
            self._late += 1
            # While it waits, a damaged key frame must not be used; frames that are shown before one may be incomplete.
            if self._waiting and all(each.place < place for each in self._pending.values()):
                self._broken_at = index
        elif packet.is_discard and packet.is_keyframe:
            self._waiting = ""  # An edit list hides it, and what follows may depend on it.
        depth = self._context.reorder_depth
        if len(self._pending) > (depth + self._late * bool(depth) if self._is_immediate else _LONGEST_DELAY):
            first = min(self._pending, key=lambda each: self._pending[each].place if self._is_reordered else (0, each))
            is_newest = index in self._pending and not self._waiting
            self._lose(index if is_newest else first, self._waiting or _NO_PICTURE)
        if self._broken_at is not None:
            self._restart()
        return self._taken()

    def interrupt(self) -> list[Decoded]:
        """Ends the trust in the stream up to its next key frame, because a packet is missing; returns results."""
        self._restart()
        return self._taken()

    def finish(self) -> list[Decoded]:
        """Returns the results of the remaining packets."""
        self._drain()
        return self._taken()

    def _restart(self) -> None:
        if not self._context.codec.intra_only:
            self._drain()
            self._context.flush_buffers()
            self._late = 0
            self._waiting = self._waiting or _DEPENDENT
        self._broken_at = None

    def _place(self, packet: Any) -> tuple[int, int]:
        if packet.dts is not None:
            self._round += packet.dts < self._last_dts
            self._last_dts = packet.dts
        place = self._round, _NO_TIME if packet.pts is None else packet.pts
        self._is_reordered |= (self._round, _NO_TIME) < place < self._latest
        self._latest = max(place, self._latest)
        return place

    def _fault(self, index: int, packet: Any, view: memoryview) -> str:
        """Decodes a packet and takes the decoder's pictures; returns why the packet is lost, or nothing."""
        if not view:
            return "it is empty"
        if len(view) > MAX_PACKET_BYTES:
            return f"it has {len(view)} bytes, more than {MAX_PACKET_BYTES}"
        if problem := self._bitstream.problem(view) or self._oversize():
            return problem
        has_lengths = self._is_topic and self._codec in ("h264", "hevc") and b"\0\0\1" not in bytes(view[:64])
        if self._context.codec.name == _STRICT_VP9:
            packet = topic_packet(as_superframe(view), packet.pts)
        if has_lengths or packet.is_corrupt:
            return _NO_START_CODE if has_lengths else "its data is incomplete"
        packet.opaque = [index]  # A new object each time: PyAV finds it by its address.
        try:
            for frame in self._context.decode(packet):
                self._take(frame)
        except VIDEO_ERRORS as error:
            problem = self._oversize() or self._waiting
            return problem or f"it cannot be decoded: {getattr(error, 'strerror', None) or error}"
        return ""

    def _oversize(self) -> str:
        """Returns why the pictures of the stream are too large, as far as its headers were read."""
        width, height, most = self._context.width, self._context.height, most_pixels(self._context)
        if self._context.format is not None and not self._context.codec.intra_only:
            most = most * _PLAIN_BITS // max(_PLAIN_BITS, self._context.format.padded_bits_per_pixel)
        return f"it declares {width}×{height}, more than {most} pixels" if width * height > most else ""

    def _drain(self) -> None:
        with suppress(*VIDEO_ERRORS):
            for frame in self._context.decode(None):
                self._take(frame)
        for index in tuple(self._pending):
            self._lose(index, self._waiting or _NO_PICTURE)

    def _take(self, frame: Any) -> None:
        """Takes a picture of the decoder, unless it or a frame that it may depend on is damaged."""
        index: int = (frame.opaque or [-1])[0]
        packet = self._pending.get(index)
        if packet is None:
            return
        # FFmpeg's H.264 decoder waits by itself, also for streams that are refreshed in stripes.
        is_key = frame.key_frame or packet.is_key
        is_start = is_key or self._codec == "h264" or (packet.is_marked and self._waiting == _TOO_EARLY)
        if self._waiting and is_start:
            for other in [each for each in self._pending if each < index]:
                self._lose(other, self._waiting)
            self._waiting, self._key = "", packet.place
        for other in [each for each in self._pending if self._is_before(each, index)]:
            self._lose(other, self._waiting or _NO_PICTURE)
        is_dependent = self._broken_at is not None and index > self._broken_at and not is_key
        if self._waiting or is_dependent or frame.is_corrupt:
            self._lose(
                index, self._waiting or (_DEPENDENT if is_dependent else "the decoder finds its picture damaged")
            )
            return
        self._give(index, frame)

    def _is_before(self, index: int, shown: int) -> bool:
        """Returns whether a packet's picture should have come before the one that is shown."""
        if not self._context.reorder_depth:
            return index < shown
        return self._is_reordered and self._pending[index].place < self._pending[shown].place

    def _give(self, index: int, frame: Any) -> None:
        place = self._pending.pop(index).place
        if self.doubts is None:
            self.doubts = tuple(_doubts(frame, self._context.sample_aspect_ratio))
        try:
            signs = _signs(frame, self._signs)
            pixels = _turned(frame.to_ndarray(format="bgr24"), signs)
        except (SkylaneError, *VIDEO_ERRORS) as error:
            self._results.append(Decoded(index, None, str(error), frame.pts, place))
            return
        self.is_turned |= signs != _UPRIGHT
        self._results.append(Decoded(index, pixels, "", frame.pts, place))

    def _lose(self, index: int, reason: str) -> None:
        packet = self._pending.pop(index, None)
        if packet is None:
            return
        time = packet.dts if packet.place[1] == _NO_TIME else packet.place[1]
        self._results.append(Decoded(index, None, reason, time, packet.place))
        # Frames before the last key frame that come after it in the stream are needed by no frame behind it.
        # PyAV drops a picture that was due when the decoder failed, and the decoder has it.
        is_needless = packet.is_disposable or (reason == _NO_PICTURE and (packet.is_pictureless or self._late))
        if not (self._waiting or is_needless or packet.place < self._key) and self._broken_at is None:
            self._broken_at = index

    def _taken(self) -> list[Decoded]:
        results, self._results = self._results, []
        return results


def topic_packet(data: Any, time: int) -> Any:
    """Returns a packet of PyAV with the data of a message and its time of presentation, in any unit."""
    packet = av.Packet(bytes(data))
    packet.pts = min(time, _LAST_TIME)
    return packet


def _doubts(frame: Any, aspect: Any) -> Iterator[str]:
    """Yields what is not regarded when a picture is converted to RGB, or assumed."""
    if frame.color_trc in _HDR:
        yield f"its values are HDR ({_HDR[frame.color_trc]}), which is read as SDR: colours look pale; convert it to BT.709"
    if frame.colorspace == _NO_MATRIX and frame.format.name.startswith(("yuv4", "nv", "p01")):  # yuvj: JPEG's own.
        yield "its header names no colour matrix: BT.601 is assumed"
    if aspect not in (None, 0, 1):
        yield f"its pixels are {aspect} as wide as high, and are read as squares: the picture is distorted"
    if frame.interlaced_frame:
        yield "it is interlaced: what moves has a comb; deinterlace it"


def _signs(frame: Any, default: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the signs of the first four elements a, b, c, d of a picture's display matrix: x' = a x + c y, y' = b x + d y."""
    data = frame.side_data.get(SideData.DISPLAYMATRIX)
    if data is None:
        return default
    elements = struct.unpack_from("=9i", data)
    matrix = elements[0], elements[1], elements[3], elements[4]
    limit = max(map(abs, matrix))
    if not limit:
        return default
    a, b, c, d = signs = tuple(round(each / limit) for each in matrix)
    is_exact = all(abs(each - sign * limit) <= limit * _TOLERANCE for each, sign in zip(matrix, signs, strict=True))
    if not is_exact or (abs(a) + abs(b), abs(a), abs(b)) != (1, abs(d), abs(c)):
        raise SkylaneError(
            "its header turns it by an odd angle: only quarter turns are supported, convert it with ffmpeg"
        )
    return signs


def _turned(pixels: Any, signs: tuple[int, ...]) -> Any:
    if signs == _UPRIGHT:
        return pixels
    a, b, c, d = signs
    if b:
        pixels, a, d = cv2.transpose(pixels), c, b
    flips = {(-1, 1): 1, (1, -1): 0, (-1, -1): -1}  # OpenCV's codes: around the vertical, the horizontal, both axes.
    return cv2.flip(pixels, flips[a, d]) if (a, d) in flips else pixels

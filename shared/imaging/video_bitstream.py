"""Reads what FFmpeg's decoders do not report: lost H.264 frames, and frames that are not referenced or not shown."""

from collections.abc import Iterator
from typing import NamedTuple

_HEAD_BYTES = 1 << 16  # Headers come before the image data.
_UNIT_BYTES = 512  # Bytes read of a parameter set or of the header of a slice.
_HEADERS = 64  # NAL units searched for the first slice; encoders write fewer than ten before it.
_MAX_UNITS = 4096  # NAL units, for each of which FFmpeg allocates 4 kB; encoders write at most a few hundred slices.
MAX_VIDEO_PIXELS = 1 << 24  # Of a frame that others refer to: decoders keep up to 16, libvpx also of damaged streams.
_HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)  # H.264, 7.3.2.1.1
_FULL_COLOUR = 3  # chroma_format_idc of 4:4:4.
_SLICE, _KEY_SLICE, _SEQUENCE, _PICTURE = 1, 5, 7, 8  # H.264, table 7-1.
_HEVC_SLICES = 32  # Unit types below are slices (H.265, table 7-1).
_HEVC_KEY_TYPES = 16  # Even types below are pictures to which no picture of the same layer refers.
_HEVC_FIRST_TYPES = (19, 20)  # The numbers of pictures start again at these.


_VP9_INDEX, _VP9_INDEX_MASK = 0xC0, 0xE0  # First and last byte of an index of frames.
_VP9_HEADER_BYTES = 32  # More than what comes before a frame's size.
_VP9_MARKER, _VP9_LAST_PROFILE, _VP9_RGB = 2, 3, 7


class PacketFacts(NamedTuple):
    """Facts about one packet of a stream."""

    has_gap: bool = False  # A frame that others need is missing between this packet and the one before.
    is_hidden: bool = False  # It adds no frame: it is only a reference, or the second field of a frame.
    is_disposable: bool = False  # No other frame needs it.
    is_key: bool = False  # It is a VP9 key frame with 8 bits, which libvpx does not report.
    is_numbered: bool = False  # Its header differs from that of the frame before.


class _Sequence(NamedTuple):
    """The properties of a sequence parameter set that decide the frame numbers of its slices."""

    number_bits: int
    allows_gaps: bool
    has_fields: bool


class Bitstream:
    """Follows the headers of one stream, packet by packet. Headers that cannot be read give no facts.

    Args:
        codec: FFmpeg's name of the codec.
        extradata: The headers of a container, if it stores them apart from the packets.
    """

    def __init__(self, codec: str, extradata: bytes | None) -> None:
        self._codec = codec
        self._sequences: dict[int, _Sequence] = {}
        self._pictures: dict[int, int] = {}  # Picture parameter set → sequence parameter set.
        self._reference: int | None = None  # Frame number of the last reference frame.
        self._field: tuple[int, int] | None = None  # Frame number and parity of a first field.
        self._length_bytes = 0  # Size of the length field before a unit; 0: units follow start codes.
        extra = extradata or b""
        if extra[:1] == b"\1" and codec in ("h264", "hevc"):  # ISO 14496-15: the layout of MP4 and MKV.
            self._length_bytes = (extra[4 if codec == "h264" else 21 : 22] or b"\3")[0] % 4 + 1
        if codec == "h264":
            self._h264(_after_start_codes(extra) if not self._length_bytes else _avc_headers(extra))

    def look(self, packet: memoryview) -> PacketFacts:
        """Returns the facts about the next packet, which is not empty."""
        first, last = packet[0], packet[-1]
        if self._codec == "vp8":  # RFC 6386, 9.1: no key frame, and not show_frame.
            return PacketFacts(is_hidden=first & 0x11 == 1)
        if self._codec == "vp9":  # The marker 2, neither show_existing_frame nor show_frame, and no superframe.
            is_hidden = first & 0xCA == 0x80 and last & 0xE0 != 0xC0
            return PacketFacts(is_hidden=is_hidden, is_key=first & 0xDC == 0x80)
        if self._codec == "h264":
            return self._h264(self._units(packet))
        if self._codec == "hevc":
            for unit in self._units(packet):
                kind = unit[0] >> 1
                if kind < _HEVC_SLICES:
                    is_base = len(unit) > 1 and unit[1] & 7 == 1
                    return PacketFacts(
                        is_disposable=kind < _HEVC_KEY_TYPES and not kind % 2 and is_base,
                        is_numbered=kind not in _HEVC_FIRST_TYPES,
                    )
        return PacketFacts()

    def problem(self, packet: memoryview) -> str:
        """Returns why decoding a packet would take too much memory; empty if it does not."""
        if self._codec == "vp9":
            return _vp9_problem(packet)
        if self._codec not in ("h264", "hevc") or len(packet) <= _MAX_UNITS:
            return ""
        if self._length_bytes:
            units = sum(1 for _ in self._units(packet, _MAX_UNITS + 1))
        else:
            units = bytes(packet).count(b"\0\0\1")
        return f"it has more than {_MAX_UNITS} units" if units > _MAX_UNITS else ""

    def _units(self, packet: memoryview, most: int = _HEADERS) -> Iterator[bytes]:
        if not self._length_bytes:
            yield from _after_start_codes(bytes(packet[:_HEAD_BYTES]))
            return
        at = 0
        for _ in range(most):
            begin = at + self._length_bytes
            at = begin + int.from_bytes(packet[at:begin])
            if begin >= len(packet):
                return
            if unit := bytes(packet[begin : min(at, begin + _UNIT_BYTES)]):
                yield unit

    def _h264(self, units: Iterator[bytes]) -> PacketFacts:
        for unit in units:
            kind = unit[0] & 0x1F
            try:
                bits = _Bits(unit[1:_UNIT_BYTES].replace(b"\0\0\3", b"\0\0"))  # Without what prevents start codes.
                if kind == _SEQUENCE:
                    number, sequence = _sequence(bits)
                    self._sequences[number] = sequence
                elif kind == _PICTURE:
                    number = bits.number()
                    self._pictures[number] = bits.number()
                elif kind in (_SLICE, _KEY_SLICE):
                    return self._slice(bits, is_key=kind == _KEY_SLICE, is_reference=bool(unit[0] & 0x60))
            except (_BitsError, KeyError):
                return PacketFacts()
        return PacketFacts()

    def _slice(self, bits: "_Bits", *, is_key: bool, is_reference: bool) -> PacketFacts:
        """Compares frame numbers (H.264, 7.4.3): each reference frame has the number after that of the last one."""
        bits.number()  # First macroblock.
        bits.number()  # Type.
        sequence = self._sequences[self._pictures[bits.number()]]
        number, last = bits.take(sequence.number_bits), self._reference
        field = (number, bits.take(1)) if sequence.has_fields and bits.take(1) else None
        is_second = field is not None and self._field == (number, 1 - field[1])
        self._field = None if is_second else field
        if is_reference:
            self._reference = number
        expected = None if last is None else (last, (last + 1) % (1 << sequence.number_bits))
        has_gap = not is_key and expected is not None and number not in expected and not sequence.allows_gaps
        return PacketFacts(has_gap, is_second, not is_reference, is_numbered=not is_key)


class _BitsError(Exception):
    """A header ends too early, or has parts that are not followed."""


class _Bits:
    """Reads the bits of a header."""

    def __init__(self, data: bytes) -> None:
        self._bits, self._left = int.from_bytes(data), 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise _BitsError
        return self._bits >> self._left & (1 << count) - 1

    def number(self) -> int:
        """Reads an Exp-Golomb code, ue(v)."""
        zeros = 0
        while not self.take(1):
            zeros += 1
        return (1 << zeros) - 1 + self.take(zeros)


def _vp9_problem(packet: memoryview) -> str:
    """Returns which frame of a packet is too large. One that takes its size from another frame is not."""
    try:
        for begin, end in _vp9_frames(packet):
            width, height, weight = _vp9_size(_Bits(bytes(packet[begin : min(end, begin + _VP9_HEADER_BYTES)])))
            if width * height * weight > MAX_VIDEO_PIXELS:
                return f"its header declares {width}×{height}, more than {MAX_VIDEO_PIXELS // weight} pixels"
    except _BitsError:
        return "its header is damaged"
    return ""


def as_superframe(packet: memoryview) -> bytes:
    """Returns a VP9 packet with an index of its frames: without one, libvpx takes what is behind a frame for another."""
    if packet[-1] & _VP9_INDEX_MASK == _VP9_INDEX:
        return bytes(packet)
    marker = bytes([_VP9_INDEX | 3 << 3])  # One frame, with a size of 4 bytes.
    return b"".join((packet, marker, len(packet).to_bytes(4, "little"), marker))


def _vp9_frames(packet: memoryview) -> Iterator[tuple[int, int]]:
    """Yields begin and end of the frames in a packet (VP9 specification, Annex B)."""
    marker = packet[-1]
    if marker & _VP9_INDEX_MASK != _VP9_INDEX:
        yield 0, len(packet)
        return
    count, size_bytes = (marker & 7) + 1, (marker >> 3 & 3) + 1
    index = len(packet) - 2 - count * size_bytes
    if index < 0 or packet[index] != marker:
        raise _BitsError
    begin = 0
    for at in range(index + 1, len(packet) - 1, size_bytes):
        end = begin + int.from_bytes(packet[at : at + size_bytes], "little")
        if end > len(packet):
            raise _BitsError
        if end > begin:
            yield begin, end
        begin = end


def _vp9_size(bits: _Bits) -> tuple[int, int, int]:
    """Returns width and height that a frame header declares (VP9 specification, 6.2), 0 if they are another frame's.

    The third number is by how much a pixel takes more memory than with 8 bits and colours of half the size.
    """
    unsized = (0, 0, 1)
    if bits.take(2) != _VP9_MARKER:
        raise _BitsError
    profile = bits.take(1) | bits.take(1) << 1
    if (profile == _VP9_LAST_PROFILE and bits.take(1)) or bits.take(1):  # A reserved bit; show_existing_frame.
        return unsized
    is_inter, is_shown, is_resilient = bits.take(1), bits.take(1), bits.take(1)
    is_intra_only = is_inter and not is_shown and bits.take(1)
    if is_inter and not is_resilient:
        bits.take(2)
    if is_inter and not is_intra_only:
        bits.take(8 + 3 * 4)  # Frames to replace, and the references.
        if any(bits.take(1) for _ in range(3)):
            return unsized
    else:
        bits.take(24)  # The code for synchronisation.
        if not is_inter or profile:
            if profile > 1:
                bits.take(1)
            is_rgb = bits.take(3) == _VP9_RGB
            bits.take((0 if is_rgb else 1) + (profile & 1) * (1 if is_rgb else 3))
        if is_inter:
            bits.take(8)
    return bits.take(16) + 1, bits.take(16) + 1, (1 + (profile & 1)) << (profile >> 1)


def _sequence(bits: _Bits) -> tuple[int, _Sequence]:
    """Reads a sequence parameter set (H.264, 7.3.2.1.1) up to what is needed."""
    profile = bits.take(8)
    bits.take(16)
    key = bits.number()
    if profile in _HIGH_PROFILES:
        has_planes = bits.number() == _FULL_COLOUR and bits.take(1)
        bits.number()
        bits.number()
        bits.take(1)
        if has_planes or bits.take(1):
            raise _BitsError  # Separate planes and scaling lists: rare, and not followed.
    number_bits = bits.number() + 4
    order_type = bits.number()
    if order_type == 0:
        bits.number()
    elif order_type == 1:
        bits.take(1)
        bits.number()
        bits.number()
        for _ in range(bits.number()):
            bits.number()
    bits.number()
    allows_gaps = bool(bits.take(1))
    bits.number()
    bits.number()
    return key, _Sequence(number_bits, allows_gaps, has_fields=not bits.take(1))


def _after_start_codes(data: bytes) -> Iterator[bytes]:
    at = data.find(b"\0\0\1")
    for _ in range(_HEADERS):
        if at < 0 or at + 3 >= len(data):
            return
        end = data.find(b"\0\0\1", at + 3)
        if unit := data[at + 3 : end if end >= 0 else None]:
            yield unit
        at = end


def _avc_headers(extra: bytes) -> Iterator[bytes]:
    """Yields the parameter sets of an AVCDecoderConfigurationRecord (ISO 14496-15)."""
    at = 5
    for mask in (0x1F, 0xFF):
        count = (extra[at : at + 1] or b"\0")[0] & mask
        at += 1
        for _ in range(count):
            size = int.from_bytes(extra[at : at + 2])
            if unit := extra[at + 2 : at + 2 + size]:
                yield unit
            at += 2 + size

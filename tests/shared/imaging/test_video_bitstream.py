"""What a packet of a video declares, before a decoder allocates memory for it."""

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from shared.imaging.video_bitstream import Bitstream, as_superframe
from shared.imaging.video_decoder import VideoDecoder, topic_packet

ROOT = Path(__file__).parents[3]
KEY, INTER, INTRA_ONLY = "0" + "1" + "0", "1" + "1" + "0", "1" + "0" + "0" + "1" + "00"
SYNC = f"{0x498342:024b}"
REPLACED = "0" * 8
REFERENCES = "0" * 12


def frame(*fields: str, size: tuple[int, int] | None = None) -> bytes:
    """Returns the header of a frame, from the fields between its marker and its size, and some data."""
    bits = "10" + "".join(fields) + ("" if size is None else f"{size[0] - 1:016b}{size[1] - 1:016b}")
    return int(bits.ljust(-len(bits) % 8 + len(bits), "0"), 2).to_bytes((len(bits) + 7) // 8) + bytes(8)


def superframe(*frames: bytes, size_bytes: int = 2) -> bytes:
    """Returns frames with an index behind them."""
    marker = bytes([0xC0 | size_bytes - 1 << 3 | len(frames) - 1])
    return b"".join((*frames, marker, *(len(each).to_bytes(size_bytes, "little") for each in frames), marker))


def problem(packet: bytes) -> str:
    """Returns why a VP9 packet is not decoded."""
    return Bitstream("vp9", None).problem(memoryview(packet))


HUGE = (46261, 40327)
# Profile 0 and what is declared for it; the second bit of a profile comes last, then whether an earlier frame is shown.
FRAMES = {
    "key": lambda size: frame("00", "0", KEY, SYNC, "010", "0", size=size),
    "key, RGB": lambda size: frame("10", "0", KEY, SYNC, "111", "0", size=size),
    "key, 4:4:4": lambda size: frame("10", "0", KEY, SYNC, "010", "0", "000", size=size),
    "key, 10 bits": lambda size: frame("01", "0", KEY, SYNC, "0", "010", "0", size=size),
    "key, 12 bits, 4:2:2": lambda size: frame("11", "0", "0", KEY, SYNC, "1", "010", "0", "100", size=size),
    "intra only": lambda size: frame("00", "0", INTRA_ONLY, SYNC, REPLACED, size=size),
    "intra only, 4:4:4": lambda size: frame("10", "0", INTRA_ONLY, SYNC, "010", "0", "000", REPLACED, size=size),
    "inter": lambda size: frame("00", "0", INTER, "00", REPLACED, REFERENCES, "000", size=size),
    "inter, resilient": lambda size: frame("00", "0", "1" + "1" + "1", REPLACED, REFERENCES, "000", size=size),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_every_kind_of_frame_has_a_limit(kind: str) -> None:
    """Also as the second frame of a packet; those of one byte allocate a gigabyte."""
    large, small = FRAMES[kind](HUGE), FRAMES[kind]((1920, 1080))
    reason = "its header declares 46261×40327, more than "
    assert problem(large).startswith(reason)
    assert problem(superframe(small, large)).startswith(reason)
    assert problem(superframe(large, small, size_bytes=4)).startswith(reason)
    assert not problem(small)
    assert not problem(superframe(small, small, small))


def test_more_bits_and_colours_count() -> None:
    """A pixel takes 1.5 bytes with 8 bits and 4:2:0, and up to 6."""
    assert not problem(FRAMES["key"]((4096, 4096)))
    assert "more than 16777216 pixels" in problem(FRAMES["key"]((4096, 4097)))
    assert "more than 8388608 pixels" in problem(FRAMES["key, 4:4:4"]((4096, 4096)))
    assert "more than 4194304 pixels" in problem(FRAMES["key, 12 bits, 4:2:2"]((4096, 4096)))


@pytest.mark.parametrize(
    "packet",
    [
        frame("00", "1", "000"),  # It shows an earlier frame.
        frame("00", "0", INTER, "00", REPLACED, REFERENCES, "01"),  # It has the size of its second reference.
        superframe(frame("00", "1", "000"), b""),
    ],
    ids=["shows-another", "size-of-another", "empty-frame"],
)
def test_frames_without_a_size_are_decoded(packet: bytes) -> None:
    """Their size is that of a frame that was accepted."""
    assert not problem(packet)


@pytest.mark.parametrize(
    "packet",
    [
        b"\x80",
        b"\x49\x83\x42\x00",  # No frame begins so.
        FRAMES["key"]((64, 64))[:6],
        superframe(FRAMES["key"]((64, 64)))[1:],  # The index does not fit.
        b"\xc9",
        superframe(FRAMES["key"]((64, 64)))[:-4] + b"\xff\xff\xc8",
    ],
    ids=["one-byte", "marker", "cut", "index", "only-a-marker", "sizes"],
)
def test_a_damaged_header_is_not_decoded(packet: bytes) -> None:
    """It would declare any size."""
    assert problem(packet) == "its header is damaged"


def test_libvpx_finds_no_frame_behind_the_one_that_was_read() -> None:
    """Without an index, it decodes what is behind a frame as the next one."""
    key = FRAMES["key"]((64, 64))
    assert as_superframe(memoryview(key)) == superframe(key, size_bytes=4)
    assert as_superframe(memoryview(superframe(key, key))) == superframe(key, key)


_PLAY = """
import random
from pathlib import Path
from tests.support.video_streams import LOW_DELAY, encode
from shared.imaging.video_decoder import VideoDecoder, topic_packet

packets = [packet.data for packet in encode(*LOW_DELAY["vp9"], frames=12)]
chance = random.Random(1)
for round in range(60):
    decoder = VideoDecoder.named("vp9", packets[0])
    for index, packet in enumerate(packets):
        changed = bytearray(packet)
        for _ in range(chance.choice((1, 2, 4))):
            changed[chance.randrange(min(12, len(changed)))] ^= 1 << chance.randrange(8)
        decoder.decode(index, topic_packet(changed + packets[0] if index % 3 else changed, index))
status = dict(line.split(':', 1) for line in Path('/proc/self/status').read_text().splitlines())
print(status['VmHWM'].split()[0])  # In kB; other counts include the parent's.
"""


def test_a_hostile_stream_takes_little_memory() -> None:
    """Changed headers of a small video took 3.5 GB, which ended the vehicle."""
    done = subprocess.run([sys.executable, "-c", _PLAY], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) < 600_000


@pytest.mark.parametrize(("side", "layout", "most"), [(4352, "yuv420p", 16_777_216), (2100, "yuv444p10le", 4_194_304)])
def test_what_a_stream_declares_bounds_its_pictures(side: int, layout: str, most: int) -> None:
    """Decoders keep up to 16 pictures: in 4:4:4 with 10 bits, one has four times the bytes."""
    context: Any = av.CodecContext.create("libx264", "w")
    context.width = context.height = side
    context.pix_fmt, context.time_base, context.thread_count = layout, Fraction(1, 10), 1
    context.options = {"preset": "ultrafast", "tune": "zerolatency"}
    packets = []
    for index in range(2):
        frame = av.VideoFrame(side, side, layout)
        frame.pts = index
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        packets += [bytes(packet) for packet in context.encode(frame)]
    decoder = VideoDecoder.named("h264", packets[0])
    results = [each for index, data in enumerate(packets) for each in decoder.decode(index, topic_packet(data, index))]
    assert f"it declares {side}×{side}, more than {most} pixels" in {each.reason for each in results}

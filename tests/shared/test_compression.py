import tracemalloc
from collections.abc import Callable

import lz4.block
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from shared.compression import Buffer, compress_lz4, compress_zstd, decompress_lz4, decompress_zstd
from shared.errors import SkylaneError

PAIRS = [(compress_zstd, decompress_zstd), (compress_lz4, decompress_lz4)]
DECOMPRESSORS = [decompress_zstd, decompress_lz4]
Compress = Callable[[Buffer], bytes]
Decompress = Callable[[bytes, int], bytes]


def zstd_without_size(data: bytes) -> bytes:
    """Returns a Zstandard frame without a declared size, as stream encoders write it."""
    return zstd.compress(data, options={zstd.CompressionParameter.content_size_flag: 0})


@pytest.mark.parametrize(("compress", "decompress"), PAIRS)
@given(data=st.binary(min_size=1, max_size=300))
def test_data_round_trips(compress: Compress, decompress: Decompress, data: bytes) -> None:
    """Both codecs accept views as well as bytes."""
    assert decompress(compress(data), len(data)) == data
    assert decompress(compress(memoryview(data)), len(data)) == data


def test_zstd_frame_without_declared_size_is_accepted() -> None:
    """Stream encoders of other languages do not declare it."""
    assert decompress_zstd(zstd_without_size(b"pixels" * 50), 300) == b"pixels" * 50


@pytest.mark.parametrize(("compress", "decompress"), PAIRS)
@pytest.mark.parametrize("size", [0, 1, 299, 301, 10_000])
def test_unexpected_size_is_rejected(compress: Compress, decompress: Decompress, size: int) -> None:
    """An array of another size would be read past its end or stay partly empty."""
    with pytest.raises(SkylaneError, match=f"{size}"):
        decompress(compress(b"pixels" * 50), size)


@pytest.mark.parametrize(
    ("decompress", "bomb"),
    [
        (decompress_lz4, lz4.block.compress(bytes(100_000_000), store_size=False)),
        (decompress_zstd, zstd.compress(bytes(100_000_000))),
        (decompress_zstd, zstd_without_size(bytes(100_000_000))),
    ],
    ids=["lz4", "zstd", "zstd stream"],
)
def test_decompression_bomb_takes_no_memory(decompress: Decompress, bomb: bytes) -> None:
    """Kilobytes that decompress to 100 MB must be rejected before they do."""
    tracemalloc.start()
    try:
        with pytest.raises(SkylaneError, match=r"decompress|declares"):
            decompress(bomb, 80)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_trailing_bytes_are_rejected() -> None:
    """A message holds exactly one frame."""
    with pytest.raises(SkylaneError, match="unused"):
        decompress_zstd(compress_zstd(b"pixels") + b"more", 6)


@pytest.mark.parametrize("decompress", DECOMPRESSORS)
@given(data=st.binary(max_size=60), size=st.integers(1, 100))
def test_random_bytes_raise_only_compression_error(decompress: Decompress, data: bytes, size: int) -> None:
    """Any other exception would end the receiving thread."""
    try:
        decompressed = decompress(data, size)
    except SkylaneError:
        return
    assert len(decompressed) == size

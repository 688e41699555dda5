"""Folding and unfolding data of a known size."""

import tracemalloc
from collections.abc import Callable

import lz4.block
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from shared.encoding.compression import (
    Buffer,
    CompressionError,
    compress_lz4,
    compress_zstd,
    decompress_lz4,
    decompress_zstd,
)

PAIRS = [(compress_zstd, decompress_zstd), (compress_lz4, decompress_lz4)]
UNFOLDERS = [decompress_zstd, decompress_lz4]
Fold = Callable[[Buffer], bytes]
Unfold = Callable[[bytes, int], bytes]


def zstd_without_size(data: bytes) -> bytes:
    """A Zstandard frame as a stream writes it: it does not tell how much it unfolds to."""
    return zstd.compress(data, options={zstd.CompressionParameter.content_size_flag: 0})


@pytest.mark.parametrize(("fold", "unfold"), PAIRS)
@given(data=st.binary(min_size=1, max_size=300))
def test_what_was_folded_unfolds_to_itself(fold: Fold, unfold: Unfold, data: bytes) -> None:
    """Both codecs are lossless, and take a view as well as bytes."""
    assert unfold(fold(data), len(data)) == data
    assert unfold(fold(memoryview(data)), len(data)) == data


def test_a_zstd_stream_without_its_size_unfolds() -> None:
    """Other languages' encoders stream, and then do not know it."""
    assert decompress_zstd(zstd_without_size(b"pixels" * 50), 300) == b"pixels" * 50


@pytest.mark.parametrize(("fold", "unfold"), PAIRS)
@pytest.mark.parametrize("size", [0, 1, 299, 301, 10_000])
def test_another_size_than_announced_is_refused(fold: Fold, unfold: Unfold, size: int) -> None:
    """Shape × dtype was announced; an array of another size would be read past its end or left half empty."""
    with pytest.raises(CompressionError, match=f"{size}"):
        unfold(fold(b"pixels" * 50), size)


@pytest.mark.parametrize(
    ("unfold", "bomb"),
    [
        (decompress_lz4, lz4.block.compress(bytes(100_000_000), store_size=False)),
        (decompress_zstd, zstd.compress(bytes(100_000_000))),
        (decompress_zstd, zstd_without_size(bytes(100_000_000))),
    ],
    ids=["lz4", "zstd", "zstd stream"],
)
def test_a_bomb_takes_no_memory(unfold: Unfold, bomb: bytes) -> None:
    """Kilobytes that unfold to 100 MB must be refused before they do."""
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError, match="unfold"):
            unfold(bomb, 80)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_bytes_behind_a_frame_are_refused() -> None:
    """A second frame behind the first is nothing that we wrote."""
    with pytest.raises(CompressionError, match="unused"):
        decompress_zstd(compress_zstd(b"pixels") + b"more", 6)


@pytest.mark.parametrize("unfold", UNFOLDERS)
@given(data=st.binary(max_size=60), size=st.integers(1, 100))
def test_any_bytes_unfold_or_are_refused(unfold: Unfold, data: bytes, size: int) -> None:
    """Nothing but our own error may leave them."""
    try:
        unfolded = unfold(data, size)
    except CompressionError:
        return
    assert len(unfolded) == size

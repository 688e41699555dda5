"""HTTP/2's header lists (HPACK, RFC 7541): a library's, beside a memory of those that say the same in every call."""

from collections.abc import Iterable, Mapping
from typing import Any

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple

from shared.http2 import MAX_HEADERS, Code, Http2Error

_MOST_KNOWN, _LONGEST_KNOWN = 16, 2_048  # Lists that are remembered, and the bytes of one.


class HeaderLists:
    """Those that come on one connection, in their order."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_HEADERS)
        self._known: dict[bytes, Mapping[str, str]] = {}  # What they say while the table of the connection is as it is.

    def read(self, block: bytes) -> Mapping[str, str]:
        """The fields of one; of those with the same name the last.

        Raises:
            Http2Error: it cannot be read, and so neither can those behind it.
        """
        if (known := self._known.get(block)) is not None:
            return known
        before = self._table()
        try:
            fields = {str(name): str(value) for name, value in self._decoder.decode(block)}
        except HPACKError as error:
            raise Http2Error(f"a header list that cannot be read: {error}", code=Code.COMPRESSION) from error
        is_same = all(one is other for one, other in zip(before, self._table(), strict=True))
        if not is_same or len(self._known) == _MOST_KNOWN:
            self._known.clear()
        if is_same and len(block) <= _LONGEST_KNOWN:
            self._known[block] = fields
        return fields

    def _table(self) -> tuple[Any, ...]:
        """What tells one state of the table from another: each entry is put first, and is an object of its own."""
        table = self._decoder.header_table
        entries = table.dynamic_entries
        return (entries[0], entries[-1], table.maxsize) if entries else (None, None, table.maxsize)


def packed(fields: Iterable[tuple[str, str]]) -> bytes:
    """A part of a header list that any connection takes, as it changes nothing that the other end remembers."""
    listed = [NeverIndexedHeaderTuple(*field) for field in fields]
    written: bytes = Encoder().encode(listed, huffman=False) if listed else b""
    return written

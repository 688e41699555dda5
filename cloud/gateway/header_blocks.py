"""Header lists as they come on a connection, in one frame or in several (RFC 9113, 4.3)."""

from collections.abc import Mapping
from typing import NamedTuple

from shared import http2
from shared.header_lists import HeaderLists
from shared.http2 import MAX_HEADERS, Code, Http2Error, Kind


class HeaderList(NamedTuple):
    """A whole one."""

    stream: int
    fields: Mapping[str, str]
    is_last: bool  # Nothing follows it.


class HeaderBlocks:
    """Puts them together."""

    def __init__(self) -> None:
        self._lists = HeaderLists()
        self._begun: tuple[int, bool] | None = None  # Whose is not whole yet, and whether nothing follows it.
        self._block = bytearray()

    def check(self, kind: int) -> None:
        """See to it that a frame of this kind may come now.

        Raises:
            Http2Error: it may not.
        """
        if (self._begun is None) == (kind == Kind.CONTINUATION):
            raise Http2Error("a header list that is broken off, or goes on without having begun")

    def take(self, kind: int, flags: int, stream: int, payload: bytearray) -> HeaderList | None:
        """Take a frame of one; it, if it is whole now.

        Raises:
            Http2Error: it is too long, cannot be read, or is nobody's.
        """
        if kind == Kind.HEADERS:
            if not stream & 1:
                raise Http2Error("a call with a number that is no caller's")
            self._begun = stream, bool(flags & http2.ENDS_STREAM)
            payload = http2.unpadded(payload, flags)
        assert self._begun is not None
        begun, is_last = self._begun
        if begun != stream:
            raise Http2Error("a header list that goes on as another")
        self._block += payload
        if len(self._block) > MAX_HEADERS:
            raise Http2Error(f"a header list of more than {MAX_HEADERS} bytes", code=Code.ENOUGH)
        if not flags & http2.ENDS_HEADERS:
            return None
        block, self._block, self._begun = bytes(self._block), bytearray(), None
        return HeaderList(stream, self._lists.read(block), is_last)

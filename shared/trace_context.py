"""The W3C trace context of a frame, which travels as `traceparent`, a user property of MQTT 5.

Its ids are hashes of the frame's id, so that both nodes know them without passing them on, whatever the transport.
"""

import hashlib
import re
from typing import NamedTuple, Self

from shared.messages.topics import FrameId

_TRACEPARENT = re.compile("(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1
_RANDOM_BITS = 56  # Of a trace id, by which a share of the traces is chosen (W3C Trace Context, level 2).


class TraceContext(NamedTuple):
    """The trace of a frame, and one of its spans."""

    trace_id: int
    span_id: int
    is_sampled: bool = True

    @classmethod
    def of_frame(cls, frame_id: FrameId, attempt: int, share: float = 1.0) -> Self:
        """Returns the span of an attempt to send a frame, 0: of the frame as a whole. `share`: of the traces to sample."""
        name = str(frame_id).encode()
        trace_id = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest())
        span = hashlib.blake2b(name, digest_size=8, salt=attempt.to_bytes(8)).digest()
        return cls(trace_id, int.from_bytes(span)).sampled(share)

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Returns the context of a `traceparent`; None if it is not one, which means a new trace."""
        found = _TRACEPARENT.match(text or "")
        if found is None or (text or "")[found.end() :][:1] not in ("", "-"):
            return None
        trace_id, span_id, flags = (int(part, 16) for part in found.groups())
        return cls(trace_id, span_id, bool(flags & _SAMPLED)) if trace_id and span_id else None

    def sampled(self, share: float) -> Self:
        """Returns the context, sampled only if it is already and its trace belongs to a share of all traces."""
        chosen = self.trace_id & ((1 << _RANDOM_BITS) - 1) < share * (1 << _RANDOM_BITS)
        return self._replace(is_sampled=self.is_sampled and chosen)

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED * self.is_sampled:02x}"

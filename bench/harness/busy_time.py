"""How long something lasted of which there may be several at a time."""

from collections.abc import Sequence


def covered(spans: Sequence[tuple[int, int]]) -> int:
    """The time, in the spans' own unit, that lies in at least one of them; each is its begin and its end."""
    ordered = sorted(spans)
    inside = 0
    until = ordered[0][0] if ordered else 0
    for begin, end in ordered:
        inside += max(0, end - max(begin, until))
        until = max(until, end)
    return inside


def covered_share(spans: Sequence[tuple[int, int]]) -> float:
    """The same over the time from the first one's begin to the last one's end, 0 to 1; 0 of none."""
    if not spans:
        return 0.0
    return covered(spans) / max(1, max(end for _, end in spans) - min(begin for begin, _ in spans))

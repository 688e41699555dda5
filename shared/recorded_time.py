"""Jumps in the times of a recording: NTP, GPS or a user set the clock of the recorder while it recorded."""

LONGEST_PAUSE_NS = 1_800 * 10**9  # A longer pause passes for a jump: clocks are wrong by half a time zone or more.
_LARGEST_STEP_BACK_NS = 10**9  # Recorders write messages of several topics up to a second out of order.

_UNITS_S = {"years": 365.25 * 86400, "days": 86400, "hours": 3600, "minutes": 60}


def clock_jump(latest_ns: int, time_ns: int) -> str:
    """Describes the jump of a clock between the latest recording time so far and the next one; empty if there is none."""
    ahead_ns = time_ns - latest_ns
    if -_LARGEST_STEP_BACK_NS <= ahead_ns <= LONGEST_PAUSE_NS:
        return ""
    side = "after" if ahead_ns > 0 else "before"
    return f"recorded {format_span(abs(ahead_ns))} {side} the latest one so far: the recorder's clock was probably set"


def format_span(span_ns: int) -> str:
    """Returns a time span in its largest unit, such as "54.0 years"."""
    span_s = span_ns / 1e9
    for unit, unit_s in _UNITS_S.items():
        if span_s >= unit_s:
            return f"{span_s / unit_s:.1f} {unit}"
    return f"{span_s:.1f} s"

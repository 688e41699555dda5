"""Formats numbers for readers: four significant digits, and a dash if nothing was measured."""

import math
from typing import Final

from analysis.report.content import CellValue
from analysis.statistics.description import IntervalEstimate

NOTHING: Final = "–"  # Shown for values that were not measured or cannot be computed.
_SIGNIFICANT_DIGITS: Final = 4
_MAX_DECIMALS: Final = 3


def number(value: float, digits: int | None = None) -> str:
    """Formats a number with `digits` decimals, by default as many as show four significant digits, at most three.

    An `int` is formatted in full, and NaN or infinity as a dash.
    """
    if not math.isfinite(value):
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    if digits is None:
        digits = _decimals(value, _SIGNIFICANT_DIGITS)
    formatted = f"{value:,.{digits}f}"
    return (formatted.lstrip("-") if not float(formatted.replace(",", "")) else formatted).replace("-", "−")


def milliseconds(value_ms: float) -> str:
    """Formats a duration for a sentence, with three significant digits; "not known" for NaN and infinity."""
    if not math.isfinite(value_ms):
        return "not known"
    return f"{_three_digits(value_ms)} ms"


def _three_digits(value: float) -> str:
    return number(value, _decimals(value, 3))


def _decimals(value: float, significant: int) -> int:
    """Returns the decimals that show this many significant digits of the rounded value: 99.996 becomes 100.0."""
    rounded = float(f"{abs(value):.{significant - 1}e}")
    return min(_MAX_DECIMALS, max(0, significant - 1 - math.floor(math.log10(rounded)))) if rounded else 0


def share(value: float) -> str:
    """Formats a share between 0 and 1 as a percentage; only exact values become 0 % or 100 %."""
    if not math.isfinite(value):
        return NOTHING
    percent = 100 * value
    for digits in (0, 1, 2):
        formatted = f"{percent:.{digits}f}"
        if value in (0, 1) or float(formatted) not in (0, 100):
            return f"{formatted} %"
    return "less than 0.01 %" if value < 1 / 2 else "more than 99.99 %"


def interval(estimate: IntervalEstimate, digits: int | None = None) -> str:
    """Formats the interval of an estimate as "131.0 to 135.6"; empty if it has none."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return ""
    return f"{number(estimate.low, digits)} to {number(estimate.high, digits)}"


def text(cell: CellValue, digits: int | None = None) -> str:
    """Formats a table cell on one line; an estimate has its interval in brackets."""
    if cell is None:
        return NOTHING
    if isinstance(cell, str):
        return cell
    if isinstance(cell, IntervalEstimate):
        limits = interval(cell, digits)
        return number(cell.value, digits) + (f" [{limits}]" if limits else "")
    return number(cell, digits)


def probability(p: float) -> str:
    """Formats a p-value, never as 0."""
    smallest = 0.001
    return NOTHING if not math.isfinite(p) else f"< {smallest}" if p < smallest else f"{p:.3f}"


def size(count: float) -> str:
    """Formats a number of bytes in B, kB, MB or GB (powers of 1,000)."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= factor:
            return f"{_three_digits(count / factor)} {unit}"
    return f"{number(int(count))} B" if math.isfinite(count) else NOTHING

"""How the report writes numbers: four significant figures, and a word where nothing was measured."""

import math
from typing import Final

from bench.report.content import CellValue
from bench.statistics.description import IntervalEstimate

NOTHING: Final = "–"  # Was not measured, or cannot be told.
_FIGURES: Final = 4
_MOST_DECIMALS: Final = 3


def number(value: float, digits: int | None = None) -> str:
    """A number for people: `digits` decimals, or four significant figures and at most three decimals."""
    if not math.isfinite(value):
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    if digits is None:
        # Of the rounded value: 99.996 is 100.0 and not 100.00.
        size = float(f"{abs(value):.{_FIGURES - 1}e}")
        digits = min(_MOST_DECIMALS, max(0, _FIGURES - 1 - math.floor(math.log10(size)))) if size else 0
    written = f"{value:,.{digits}f}"
    return (written.lstrip("-") if not float(written.replace(",", "")) else written).replace("-", "−")


def milliseconds(value_ms: float) -> str:
    """A duration in a sentence: three significant figures."""
    if not math.isfinite(value_ms):
        return "not known"
    return f"{_three(value_ms)} ms"


def _three(value: float) -> str:
    """Three significant figures, at most three decimals."""
    size_of = float(f"{abs(value):.2e}")
    return number(value, min(_MOST_DECIMALS, max(0, 2 - math.floor(math.log10(size_of)))) if size_of else 0)


def share(value: float) -> str:
    """A share of 0 to 1 as a percentage; what is not all is never written as 100 %, nor something as 0 %."""
    if not math.isfinite(value):
        return NOTHING
    percent = 100 * value
    for digits in (0, 1, 2):
        written = f"{percent:.{digits}f}"
        if value in (0, 1) or float(written) not in (0, 100):
            return f"{written} %"
    return "less than 0.01 %" if value < 1 / 2 else "more than 99.99 %"


def interval(estimate: IntervalEstimate, digits: int | None = None) -> str:
    """The bounds of an estimate: "131.0 to 135.6"; empty where the sample cannot give them."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return ""
    return f"{number(estimate.low, digits)} to {number(estimate.high, digits)}"


def text(cell: CellValue, digits: int | None = None) -> str:
    """A cell on one line."""
    if cell is None:
        return NOTHING
    if isinstance(cell, str):
        return cell
    if isinstance(cell, IntervalEstimate):
        bounds = interval(cell, digits)
        return number(cell.value, digits) + (f" [{bounds}]" if bounds else "")
    return number(cell, digits)


def probability(p: float) -> str:
    """A p-value: never 0."""
    least = 0.001
    return NOTHING if not math.isfinite(p) else f"< {least}" if p < least else f"{p:.3f}"


def size(count: float) -> str:
    """Bytes in the decimal unit that gives the shortest number."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= factor:
            return f"{_three(count / factor)} {unit}"
    return f"{number(int(count))} B" if math.isfinite(count) else NOTHING

"""Describes a latency comparison in one sentence that claims no more than its test supports."""

import math

from analysis.statistics.run_test import MIN_RUNS, RunTest

_NEGLIGIBLE_SHARE = 0.01  # Differences below this share of a's median are called small or negligible.
_MIN_PRINTED_P = 0.001


def comparison_sentence(a: str, b: str, test: RunTest) -> str:
    """Describes the difference between the median latencies of b and a, in milliseconds, and the result of the test."""
    if not math.isfinite(test.difference.value):
        return f"The medians of {b} and {a} cannot be compared: {b if not test.b.count else a} has no answered frame."
    if not test.method:
        return f"{_observed_difference(a, b, test)}; {test.verdict}: at least {MIN_RUNS} runs of each are needed."
    difference = test.difference
    digits = _digits(difference.high - difference.low)
    interval = f"{_number(difference.low, digits)} to {_number(difference.high, digits)} ms"
    evidence = f"95 % interval {interval}; {test.method} over {test.basis}, {p_text(test.p_value)}"
    if test.tests > 1:
        evidence += f" adjusted for {test.tests} comparisons"
    if test.is_significant:
        longer = "longer" if difference.value > 0 else "less"
        took = f"At the median, {b} took {abs(difference.value):.{digits}f} ms {longer} than {a}"
        return f"{took} ({evidence}){_size_remark(test)}."
    remark = "this does not show that they are equal"
    if _largest_share(test) < _NEGLIGIBLE_SHARE:
        remark = f"any difference is below {_NEGLIGIBLE_SHARE * 100:.0f} % of the median"
    return f"The medians of {a} and {b} do not differ significantly ({evidence}); {remark}."


def p_text(p_value: float) -> str:
    """Formats a p-value as "p = 0.012" or "p < 0.001", never as 0."""
    return f"p < {_MIN_PRINTED_P}" if p_value < _MIN_PRINTED_P else f"p = {p_value:.3f}"


def _observed_difference(a: str, b: str, test: RunTest) -> str:
    """Describes the observed runs, without a claim about other runs."""
    value = test.difference.value
    digits = _digits(abs(value))
    medians = f"{_number(test.b.mean, digits)} against {_number(test.a.mean, digits)} ms"
    if not value:
        return f"The median of {b} was the same as that of {a} in these runs ({medians})"
    size = f"{abs(value):.{digits}f} ms {'higher' if value > 0 else 'lower'}"
    return f"The median of {b} was {size} than that of {a} in these runs ({medians})"


def _size_remark(test: RunTest) -> str:
    """Points out a difference that is too small to matter; empty for a larger one."""
    share = _share(test, test.difference.value)
    if _largest_share(test) < _NEGLIGIBLE_SHARE:
        return f", but this is negligible: {share * 100:.2f} % of the median"
    return f", but this is small: {share * 100:.1f} % of the median" if share < _NEGLIGIBLE_SHARE else ""


def _largest_share(test: RunTest) -> float:
    """Returns the end of the interval that is further from 0, as a share of a's median."""
    return max(_share(test, test.difference.low), _share(test, test.difference.high))


def _share(test: RunTest, difference: float) -> float:
    return abs(difference) / test.a.mean if test.a.mean else math.inf


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def _digits(width: float) -> int:
    """Returns the number of decimals that shows two significant digits of `width`; at most three (a microsecond)."""
    return min(3, max(0, 1 - math.floor(math.log10(width)))) if width > 0 else 3

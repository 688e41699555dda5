"""One sentence for a comparison of latencies, made from its test, that claims no more than the runs can show."""

import math

from bench.statistics.run_test import LEAST_RUNS, RunTest

_NEGLIGIBLE = 0.01  # As a share of a's median.
_LEAST_P = 0.001


def sentence(a: str, b: str, test: RunTest) -> str:
    """Describes how far the median latency of b lies from that of a, in milliseconds, and what the test says of it."""
    if not math.isfinite(test.difference.value):
        return f"{b} cannot be compared with {a}: {b if not test.b.count else a} has no answered frame."
    if not test.method:
        return f"{_described(a, b, test)}; {test.verdict}: at least {LEAST_RUNS} runs a side are needed."
    difference = test.difference
    digits = _digits(difference.high - difference.low)
    bounds = f"{_number(difference.low, digits)} to {_number(difference.high, digits)} ms"
    told = f"95 % interval {bounds}; {test.method} over {test.basis}, {p_text(test.p_value)}{_family(test)}"
    if test.is_shown:
        longer = "longer" if difference.value > 0 else "less"
        return f"{b} took {abs(difference.value):.{digits}f} ms {longer} than {a} at the median ({told}){_size(test)}."
    return f"Between {a} and {b} no difference could be shown at the median ({told}); {_not_shown(test)}."


def p_text(p_value: float) -> str:
    """A p-value: "p = 0.012" or "p < 0.001", never 0."""
    return f"p < {_LEAST_P}" if p_value < _LEAST_P else f"p = {p_value:.3f}"


def _described(a: str, b: str, test: RunTest) -> str:
    """What the runs at hand had, without a claim about others."""
    value = test.difference.value
    digits = _digits(abs(value))
    medians = f"{_number(test.b.mean, digits)} against {_number(test.a.mean, digits)} ms"
    if not value:
        return f"{b} had the same median as {a} in these runs ({medians})"
    return f"{b} had a median {abs(value):.{digits}f} ms {'higher' if value > 0 else 'lower'} than {a} in these runs ({medians})"


def _family(test: RunTest) -> str:
    return f" adjusted for {test.tests} comparisons" if test.tests > 1 else ""


def _size(test: RunTest) -> str:
    """A remark where the difference is too small to matter."""
    share = _share(test, test.difference.value)
    if _furthest(test) < _NEGLIGIBLE:
        return f", but this is negligible: {share * 100:.2f} % of the median"
    return f", but this is small: {share * 100:.1f} % of the median" if share < _NEGLIGIBLE else ""


def _not_shown(test: RunTest) -> str:
    if _furthest(test) < _NEGLIGIBLE:
        return f"if there is one, it is below {_NEGLIGIBLE * 100:.0f} % of the median"
    return "this does not show that they are equal"


def _furthest(test: RunTest) -> float:
    """The end of the interval that is further from 0, as a share of a's median."""
    return max(_share(test, test.difference.low), _share(test, test.difference.high))


def _share(test: RunTest, difference: float) -> float:
    return abs(difference) / test.a.mean if test.a.mean else math.inf


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def _digits(width: float) -> int:
    """The decimals that give a width two significant figures; at most three, a microsecond."""
    return min(3, max(0, 1 - math.floor(math.log10(width)))) if width > 0 else 3

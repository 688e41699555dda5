import math

import pytest

from analysis.report.output.number_format import NOTHING, interval, milliseconds, number, probability, share, size, text
from analysis.statistics.description import IntervalEstimate


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (133.127, "133.1"), (99.996, "100.0"), (1.23456, "1.235"), (0.00449, "0.004"), (123456.7, "123,457"),
        (0.0, "0"), (-0.0, "0"), (-1e-9, "0.000"), (-12.345, "−12.35"), (7, "7"), (100_000, "100,000"),
    ],
)  # fmt: skip
def test_numbers_have_four_significant_digits_and_at_most_three_decimals(value: float, written: str) -> None:
    """More digits would suggest a precision that a single run does not have; 99.996 becomes 100.0."""
    assert number(value) == written


@pytest.mark.parametrize("unknown", [math.nan, math.inf])
def test_values_that_were_not_measured_become_a_dash(unknown: float) -> None:
    """A 0 would look like a measurement."""
    assert number(unknown) == text(unknown) == text(None) == probability(unknown) == share(unknown) == NOTHING
    assert milliseconds(unknown) == "not known"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.92, "92 %"), (1.0, "100 %"), (0.0, "0 %"), (0.9999, "99.99 %"), (0.99999, "more than 99.99 %"),
        (0.004, "0.4 %"), (0.00001, "less than 0.01 %"),
    ],
)  # fmt: skip
def test_only_an_exact_share_is_shown_as_0_or_100_percent(value: float, written: str) -> None:
    """One lost frame among a hundred thousand must stay visible."""
    assert share(value) == written


def test_an_estimate_without_interval_is_shown_without_brackets() -> None:
    """A sample that is too small has no interval."""
    assert text(IntervalEstimate(133.12, 131.04, 135.66)) == "133.1 [131.0 to 135.7]"
    assert text(IntervalEstimate(133.12)) == "133.1"
    assert not interval(IntervalEstimate(133.12))


def test_a_p_value_is_never_zero() -> None:
    """No sample can prove a difference with certainty."""
    assert probability(0.0) == probability(1e-9) == "< 0.001"
    assert probability(0.0421) == "0.042"


def test_sizes_and_durations_have_three_significant_digits_and_a_unit() -> None:
    """They are used in sentences."""
    assert [milliseconds(value) for value in (133.127, 1.2345, 0.0449)] == ["133 ms", "1.23 ms", "0.045 ms"]
    assert [size(count) for count in (900, 4_550_000, 1.625e9)] == ["900 B", "4.55 MB", "1.62 GB"]

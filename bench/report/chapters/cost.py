"""What it would cost to have a day of footage segmented."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bench.cost import footage_cost
from bench.report.content import Column, Part, Prose, Section, Table, numbers, texts
from bench.report.numerals import number


@dataclass(frozen=True, slots=True)
class Tariff:
    """The price of an hour of the machine, and the rate of the footage."""

    price_per_hour: float
    currency: str = "EUR"
    footage_hz: float = 24.0


def chapter(rates_hz: Iterable[tuple[str, float]], tariff: Tariff) -> Section:
    """The price of 24 h of footage at the throughput of each run, by name."""
    rows, missing = [], []
    for name, rate_hz in rates_hz:
        if not (np.isfinite(rate_hz) and rate_hz > 0):
            missing.append(name)
            continue
        cost = footage_cost(
            rate_hz, tariff.price_per_hour, currency=tariff.currency, footage_hz=tariff.footage_hz
        )  # fmt: skip
        rows.append((name, cost.throughput_hz, cost.frames, cost.hours, cost.price))
    about = Prose(
        f"24 hours of footage at {number(tariff.footage_hz)} frames a second, on a machine at "
        f"{number(tariff.price_per_hour, 2)} {tariff.currency} an hour that is busy for frames / throughput. A run that was "
        "played slower than the worker could go makes footage look dearer than it is."
    )
    columns = (
        *texts("run"),
        *numbers("answered a second", "frames", "hours busy"),
        Column(f"price {tariff.currency}", digits=2),
    )
    parts: list[Part] = [about, Table("cost", "Price of 24 h of footage.", columns, tuple(rows))]
    parts += [Prose(f"Not known for {name}: no frame was answered.") for name in missing]
    return Section("cost", "Cost", tuple(parts))

"""What it would cost to have a day of footage segmented."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.offloading.cost import CostError, FootageCost, footage_cost
from bench.report.content import Chapter, ChapterPart, Column, Paragraph, ReportTable, number_columns, text_columns
from bench.report.output.number_format import number


@dataclass(frozen=True, slots=True)
class Tariff:
    """The price of an hour of the machine, and the rate of the footage."""

    price_per_hour: float
    currency: str = "EUR"
    footage_hz: float = 24.0

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> "Tariff | None":
        """That of a study's manifest; None where it has none that can be used."""
        told: Any = manifest.get("tariff")
        try:
            price, hz = float(told["price_per_hour"]), float(told["footage_hz"])
            footage_cost(1.0, price, footage_hz=hz)
            return cls(price, str(told["currency"]), hz)
        except (KeyError, TypeError, ValueError, CostError):
            return None


def chapter(rates_hz: Iterable[tuple[str, Iterable[float]]], tariff: Tariff) -> Chapter:
    """The price of 24 h of footage at the mean throughput of some runs. `rates_hz`: a name, and the rate of each of its runs."""
    rows, missing = [], []
    for name, rates in rates_hz:
        known = np.array([rate for rate in rates if np.isfinite(rate) and rate > 0], np.float64)
        if not len(known):
            missing.append(name)
            continue
        cost = _cost(float(known.mean()), tariff)
        prices = [_cost(float(rate), tariff).price for rate in known]
        spread = float(np.std(prices, ddof=1)) if len(prices) > 1 else np.nan
        rows.append((name, len(known), cost.throughput_hz, cost.frames, cost.hours, cost.price, spread))
    about = Paragraph(
        f"24 hours of footage at {number(tariff.footage_hz)} frames a second, on a machine at "
        f"{number(tariff.price_per_hour, 2)} {tariff.currency} an hour that is busy for frames / throughput. A run that was "
        "played slower than the worker could go makes footage look dearer than it is."
    )
    columns = (
        *text_columns("run"),
        *number_columns("runs", "answered a second", "frames", "hours busy"),
        Column(f"price {tariff.currency}", digits=2),
        Column(f"± {tariff.currency}", digits=2),
    )
    caption = "Price of 24 h of footage, at the mean throughput of the runs. ±: the standard deviation of the prices of single runs, – of one."
    parts: list[ChapterPart] = [about, ReportTable("cost", caption, columns, tuple(rows))]
    parts += [Paragraph(f"Not known for {name}: no frame was answered.") for name in missing]
    return Chapter("cost", "Cost", tuple(parts))


def _cost(rate_hz: float, tariff: Tariff) -> FootageCost:
    return footage_cost(rate_hz, tariff.price_per_hour, currency=tariff.currency, footage_hz=tariff.footage_hz)

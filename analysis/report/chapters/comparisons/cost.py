"""The cost of processing 24 hours of footage."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.offloading import CostError, FootageCost, footage_cost
from analysis.report.content import Chapter, ChapterPart, Paragraph, ReportTable
from analysis.report.output.number_format import number


@dataclass(frozen=True, slots=True)
class Tariff:
    """The price of the machine and the frame rate of the footage."""

    price_per_hour: float
    currency: str = "EUR"
    footage_hz: float = 24.0

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> "Tariff | None":
        """Returns the tariff in a study's manifest; None if it is missing or invalid."""
        tariff: Any = manifest.get("tariff")
        try:
            price, hz = float(tariff["price_per_hour"]), float(tariff["footage_hz"])
            footage_cost(1.0, price, footage_hz=hz)
            return cls(price, str(tariff["currency"]), hz)
        except (KeyError, TypeError, ValueError, CostError):
            return None


def chapter(rates_hz: Iterable[tuple[str, Iterable[float]]], tariff: Tariff) -> Chapter:
    """Returns the price of 24 h of footage; `rates_hz` has a name and the throughput of each of its runs."""
    rows, missing = [], []
    for name, rates in rates_hz:
        measured = np.array([rate for rate in rates if np.isfinite(rate) and rate > 0], np.float64)
        if not len(measured):
            missing.append(name)
            continue
        cost = _cost(float(measured.mean()), tariff)
        run_prices = [_cost(float(rate), tariff).price for rate in measured]
        spread = float(np.std(run_prices, ddof=1)) if len(run_prices) > 1 else np.nan
        rows.append((name, len(measured), cost.throughput_hz, cost.frames, cost.hours, cost.price, spread))
    introduction = Paragraph(
        f"24 hours of footage at {number(tariff.footage_hz)} frames per second, processed on a machine at "
        f"{number(tariff.price_per_hour, 2)} {tariff.currency} per hour that is busy for frames / throughput. If frames "
        "were played more slowly than the worker can process them, the real price is lower."
    )
    prices = (f"price {tariff.currency}", f"± {tariff.currency}")
    headings = ("run", "runs", "results a second", "frames", "hours busy", *prices)
    caption = (
        "Price of 24 h of footage at the mean throughput of the runs. ±: standard deviation of the prices of the single "
        "runs, – for one run."
    )
    parts: list[ChapterPart] = [introduction, ReportTable("cost", caption, headings, rows, dict.fromkeys(prices, 2))]
    parts += [Paragraph(f"Not known for {name}: no frame got a result.") for name in missing]
    return Chapter("cost", "Cost", tuple(parts))


def _cost(rate_hz: float, tariff: Tariff) -> FootageCost:
    return footage_cost(rate_hz, tariff.price_per_hour, currency=tariff.currency, footage_hz=tariff.footage_hz)

"""Results of the load comparison: values by candidate, ratios to the fastest peer, and comparisons that a peer wins."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from bench.harness.samples import spread
from bench.peers.load_comparison.comparison import LoadMeasurements, Turns
from bench.peers.load_comparison.peer_endpoint import PeerEndpoint
from bench.peers.load_comparison.plan import OURS, Plan
from shared.runtime.machine import machine

Figures = dict[str, Any]  # Values of one candidate with one codec.


def result(plan: Plan, outcome: LoadMeasurements) -> dict[str, Any]:
    """Returns the content of `--json`."""
    cells = {
        codec: {each.name: _figures(each, turns) for each, turns in by_endpoint.items() if turns.alone}
        for codec, by_endpoint in outcome.turns.items()
    }
    return {
        "model": plan.model,
        "plan": {
            "rounds": plan.rounds,
            "frames": plan.frames,
            "clients": plan.clients,
            "mask_codec": plan.mask_codec,
            "bag": str(plan.bag),
        },
        "cells": cells,
        "ratios": {codec: _ratios(figures) for codec, figures in cells.items()},
        "floors": {codec: _floor(figures) for codec, figures in cells.items()},
        "wins": [line for codec, figures in cells.items() for line in _wins(codec, figures, plan.clients)],
        "skipped": outcome.skipped,
        "versions": outcome.versions,
        "machine": machine(),
    }


def _figures(endpoint: PeerEndpoint, turns: Turns) -> Figures:
    alone = [taken for part in turns.alone for taken in part]
    every = [*alone, *(taken for part in turns.crowded for taken in part)]
    return {
        "server": endpoint.server,
        "over_tcp": endpoint.over_tcp,
        "is_floor": endpoint.is_floor,
        "n": len(alone),
        "overhead_ms": spread([taken.overhead_ms for taken in alone]),
        "overhead_by_round_ms": [median(taken.overhead_ms for taken in part) for part in turns.alone],
        "total_ms": spread([taken.total_ms for taken in alone]),
        "inference_ms": spread([taken.inference_ms for taken in alone]),
        "answers_hz": median(turns.answers_hz),
        "answers_by_round_hz": turns.answers_hz,
        "wrong_pixels": sum(taken.wrong_pixels for taken in every),
        "masks": len(every),
    }


def _ratios(figures: Mapping[str, Figures]) -> dict[str, Any]:
    """Returns the overhead of each Skylane transport relative to the fastest peer over TCP, overall and by round."""
    fastest = _best((name for name in figures if _is_rival(figures[name])), figures)
    if fastest is None:
        return {}
    return {
        name: {
            "to": fastest,
            "ratio": _overhead_ms(each) / _overhead_ms(figures[fastest]),
            "by_round": [
                ours / theirs
                for ours, theirs in zip(
                    each["overhead_by_round_ms"], figures[fastest]["overhead_by_round_ms"], strict=False
                )
            ],
        }
        for name, each in figures.items()
        if each["server"] == OURS
    }


def _floor(figures: Mapping[str, Figures]) -> dict[str, Any]:
    """Returns the overhead of a bare gRPC call, and its share of the others' overhead."""
    floor = _best((name for name in figures if figures[name]["is_floor"]), figures)
    if floor is None:
        return {}
    least_ms = _overhead_ms(figures[floor])
    return {"name": floor, "of": {name: least_ms / _overhead_ms(each) for name, each in figures.items()}}


def _wins(codec: str, figures: Mapping[str, Figures], clients: int) -> list[str]:
    """Returns a sentence for each comparison in which a peer was better than the best Skylane transport."""
    ours = [name for name in figures if figures[name]["server"] == OURS]
    theirs = [name for name, each in figures.items() if each["server"] != OURS and not each["is_floor"]]
    lines = []
    own = _best(ours, figures)
    for name in theirs if own else ():
        assert own is not None
        shares_ms = _overhead_ms(figures[name]), _overhead_ms(figures[own])
        if shares_ms[0] < shares_ms[1]:
            lines.append(
                f"{codec}, one in flight: {name} adds {shares_ms[0]:.2f} ms to a call, {own} {shares_ms[1]:.2f} ms"
            )
    quickest = max(ours, key=lambda name: float(figures[name]["answers_hz"]), default=None)
    for name in theirs if quickest else ():
        assert quickest is not None
        rates_hz = figures[name]["answers_hz"], figures[quickest]["answers_hz"]
        if rates_hz[0] > rates_hz[1]:
            lines.append(
                f"{codec}, {clients} clients: {name} answers {rates_hz[0]:.2f}/s, {quickest} {rates_hz[1]:.2f}/s"
            )
    return lines


def _is_rival(each: Figures) -> bool:
    return bool(each["server"] != OURS and each["over_tcp"] and not each["is_floor"])


def _best(names: Iterable[str], figures: Mapping[str, Figures]) -> str | None:
    return min(names, key=lambda name: _overhead_ms(figures[name]), default=None)


def _overhead_ms(each: Figures) -> float:
    return float(each["overhead_ms"]["median"])

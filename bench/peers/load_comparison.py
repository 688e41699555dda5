"""Measures the serving overhead of all servers with the same images and load, in alternating rounds of one run.

All servers run from start to end, each in its own environment. Servers that are not being measured are frozen with all
their processes, so that they take no processor time. The serving overhead of a call is the client's time minus the
inference time of the same call as the server measured it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bench.harness import BenchRun, Comparison, Samples, compare, rounds_text, span
from bench.peers.clients import Job
from bench.peers.starter import OURS, PeerEndpoint, PeerPlan, Starter, start_all
from bench.peers.workload import by_codec, jobs, many_at_a_time, one_in_flight
from ops.processes.playback import PlaybackSettings
from shared.runlog.percentiles import NOTE, shown
from shared.terminal_table import Table, result_table

_TARGETS = {"jpeg": 1.15, "raw": 1.0}  # Maximum overhead relative to the fastest peer over TCP.
_TARGET_ENDPOINT = f"{OURS} grpc"

Figures = Mapping[str, Mapping[str, Any]]  # Values with one codec, by endpoint.


def measure(plan: PeerPlan, run: BenchRun) -> dict[str, Any]:
    """Starts all available servers and runs the rounds; returns the JSON output.

    Raises:
        PeerError: no server can be measured.
        SkylaneError: the bag or the model cannot be used.
    """
    run.step("the images and their masks")
    work = jobs(by_codec(PlaybackSettings(plan.bag, plan.models, plan.model, frames=plan.frames), plan.codecs))
    starter = Starter(plan, work[plan.codecs[0]][0], run.folder)
    endpoints, skipped = start_all(plan, starter, work.values(), run)
    candidates = {name: partial(_turn, endpoint, work, plan) for name, endpoint in endpoints.items()}
    comparison = compare(candidates, plan.rounds, run.step, may_fail=candidates)
    return {
        **summarise(plan, list(endpoints.values()), comparison),
        "skipped": skipped | comparison.failed,
        "versions": starter.versions,
    }


def _turn(endpoint: PeerEndpoint, work: Mapping[str, Sequence[Job]], plan: PeerPlan, _round: int) -> Samples:
    samples: dict[str, Sequence[float]] = {}
    with endpoint.awake():
        for codec, images in work.items():
            alone = one_in_flight(endpoint.connect, images, plan.frames, plan.turn_s)
            hz, crowded = many_at_a_time(endpoint.connect, images, 2 * plan.frames, plan.clients, plan.turn_s)
            samples |= {
                f"{codec} overhead_ms": [taken.overhead_ms for taken in alone],
                f"{codec} total_ms": [taken.total_ms for taken in alone],
                f"{codec} inference_ms": [taken.inference_ms for taken in alone],
                f"{codec} wrong_pixels": [taken.wrong_pixels for taken in (*alone, *crowded)],
                f"{codec} answers_hz": [hz],
            }
    return samples


def summarise(plan: PeerPlan, endpoints: Sequence[PeerEndpoint], comparison: Comparison) -> dict[str, Any]:
    """Returns the measured part of the JSON output: values, ratios to the fastest peer, and comparisons that a peer wins."""
    measured = [endpoint for endpoint in endpoints if endpoint.name in comparison.measured]
    cells = {codec: {each.name: _figures(each, codec, comparison) for each in measured} for codec in plan.codecs}
    ratios = {codec: _ratios(codec, figures, comparison) for codec, figures in cells.items()}
    settings = {name: getattr(plan, name) for name in ("rounds", "frames", "clients", "mask_codec")}
    return {
        "model": plan.model,
        "plan": {**settings, "bag": str(plan.bag)},
        "cells": cells,
        "ratios": ratios,
        "floors": {codec: _floor(figures) for codec, figures in cells.items()},
        "wins": [line for codec, figures in cells.items() for line in _wins(codec, figures, plan.clients)],
    }


def _figures(endpoint: PeerEndpoint, codec: str, comparison: Comparison) -> dict[str, Any]:
    name = endpoint.name
    overheads, wrong, rates = (f"{codec} {measure}" for measure in ("overhead_ms", "wrong_pixels", "answers_hz"))
    return {
        "server": endpoint.server,
        "over_tcp": endpoint.over_tcp,
        "is_floor": endpoint.is_floor,
        "n": len(comparison.samples(name, overheads)),
        "overhead_ms": comparison.spread(name, overheads),
        "overhead_by_round_ms": list(comparison.by_round(name, overheads)),
        "total_ms": comparison.spread(name, f"{codec} total_ms"),
        "inference_ms": comparison.spread(name, f"{codec} inference_ms"),
        "answers_hz": comparison.median(name, rates),
        "answers_by_round_hz": comparison.samples(name, rates),
        "wrong_pixels": sum(comparison.samples(name, wrong)),
        "masks": len(comparison.samples(name, wrong)),
    }


def _ratios(codec: str, figures: Figures, comparison: Comparison) -> dict[str, Any]:
    """Returns the overhead of each Skylane transport relative to the fastest peer over TCP, overall and by round."""
    rivals = {name: each for name, each in figures.items() if _is_peer(each) and each["over_tcp"]}
    if not rivals:
        return {}
    fastest = min(rivals, key=partial(_overhead_ms, rivals))
    return {
        name: {"to": fastest, **comparison.ratio(name, fastest, f"{codec} overhead_ms").record()}
        for name, each in figures.items()
        if each["server"] == OURS
    }


def _floor(figures: Figures) -> dict[str, Any]:
    """Returns the overhead of a bare gRPC call, and its share of the others' overhead."""
    floor = next((name for name, each in figures.items() if each["is_floor"]), None)
    if floor is None:
        return {}
    least_ms = _overhead_ms(figures, floor)
    return {"name": floor, "of": {name: least_ms / _overhead_ms(figures, name) for name in figures}}


def _wins(codec: str, figures: Figures, clients: int) -> Iterator[str]:
    """Yields a sentence for each comparison in which a peer was better than the best Skylane transport."""
    ours = [name for name, each in figures.items() if each["server"] == OURS]
    peers = [name for name, each in figures.items() if _is_peer(each)]
    if not ours:
        return
    best = min(ours, key=partial(_overhead_ms, figures))
    own_ms = _overhead_ms(figures, best)
    for name in peers:
        if (peer_ms := _overhead_ms(figures, name)) < own_ms:
            yield f"{codec}, one in flight: {name} adds {peer_ms:.2f} ms to a call, {best} {own_ms:.2f} ms"
    best = max(ours, key=lambda name: float(figures[name]["answers_hz"]))
    own_hz = figures[best]["answers_hz"]
    for name in peers:
        if (peer_hz := figures[name]["answers_hz"]) > own_hz:
            yield f"{codec}, {clients} clients: {name} answers {peer_hz:.2f}/s, {best} {own_hz:.2f}/s"


def _is_peer(each: Mapping[str, Any]) -> bool:
    return bool(each["server"] != OURS and not each["is_floor"])


def _overhead_ms(figures: Figures, name: str) -> float:
    return float(figures[name]["overhead_ms"]["median"])


def tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    """Yields the tables, the ratios, and the skipped servers."""
    for codec, figures in result["cells"].items():
        ratios, floor = result["ratios"][codec], result["floors"][codec]
        if figures:
            yield _overhead_table(result, codec, figures)
        if ratios:
            yield _ratio_table(codec, ratios)
        if floor:
            yield _floor_line(codec, figures, ratios, floor)
    for line in result["wins"]:
        yield f"A peer wins. {line}."
    yield from closing_lines(result)


def closing_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yields the skipped servers and the versions of the others."""
    for name, reason in result["skipped"].items():
        yield f"Skipped: {name}: {reason}"
    yield "; ".join(result["versions"].values())


def _overhead_table(result: Mapping[str, Any], codec: str, figures: Figures) -> Table:
    percentiles = ("median", "p95", "p99", "min")
    columns = {"way": "<!", "n": "", **dict.fromkeys(percentiles, ""), "inferred": ".1f", "/s": ".2f", "wrong": ""}
    rows = [
        (
            name,
            figures[name]["n"],
            *(shown(figures[name]["overhead_ms"][key]) for key in percentiles),
            figures[name]["inference_ms"]["median"],
            figures[name]["answers_hz"],
            figures[name]["wrong_pixels"],
        )
        for name in sorted(figures, key=partial(_overhead_ms, figures))
    ]
    return result_table(
        f"{result['model']}, {codec}: ms that serving adds to the inference of a call",
        columns,
        rows,
        f"One call in flight; /s: answers a second with {result['plan']['clients']} clients; wrong: pixels of all masks, or "
        f"bytes of all scores, against the direct call. {NOTE}",
    )


def _floor_line(codec: str, figures: Figures, ratios: Mapping[str, Any], floor: Mapping[str, Any]) -> str:
    """Returns the lower limit of any gRPC server, and its distance from the target."""
    name = floor["name"]
    text = f"The floor. {codec}: {name}, the function behind a bare gRPC server, adds "
    text += f"{_overhead_ms(figures, name):.2f} ms to a call"
    for other in (_TARGET_ENDPOINT, ratios.get(_TARGET_ENDPOINT, {}).get("to")):
        if other in floor["of"]:
            text += f", {floor['of'][other]:.2f} of what {other} adds"
    return f"{text}."


def _ratio_table(codec: str, ratios: Mapping[str, Any]) -> Table:
    rows = []
    for name, each in ratios.items():
        verdict = (
            f"{_TARGETS[codec]}, {rounds_text(each['ratio'] <= _TARGETS[codec], _TARGETS[codec], each['by_round'])}"
        )
        rows.append(
            (name, each["to"], each["ratio"], span(each["by_round"]), verdict if name == _TARGET_ENDPOINT else "")
        )
    return result_table(
        f"{codec}: overhead of our transports, divided by that of the fastest peer over TCP",
        {"way": "<!", "fastest peer": "<", "ratio": ".3f", "by round": "<", "target": "<"},
        rows,
    )

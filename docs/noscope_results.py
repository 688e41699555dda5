"""The comparison with Distributed NoScope in docs/results/index.md: its tables and its chart.

`make results-noscope` measures it. As a script, this module reduces the table of runs of its study to the file
`docs/results/data/noscope-study.json`.
"""

import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.report.chapters.traces import axis_from_zero
from analysis.report.content import Chart
from analysis.report.output.number_format import number
from analysis.report.stage_styles import STAGES, text_colour
from analysis.statistics.description import mean_of_runs
from bench.harness import interval_verdict, verdict_text

ORIGINAL_SPEED_UP = 5.52
_ORIGINAL = {  # Seconds with 1, 2, 4 and 8 servers, by frames and requests.
    (50, 22): (66, 47, 38, 38),
    (500, 49): (147, 113, 89, 74),
    (1000, 117): (360, 237, 202, 186),
    (2000, 170): (521, 390, 305, 267),
    (5000, 569): (1692, 1201, 984, 875),
}
_SERVERS = (1, 2, 4, 8)
_ORIGINAL_STEPS_MS = {"detector": 13.0, "specialised": 26.0, "network": 200.0, "compute": 4260.0}  # Single request.
_COLUMNS = ("workers", "frames", "answered")
_KINDS, _BY_DRIVE = ("Skylane", "reproduction"), ("seconds", "requests")
_UNDISTRIBUTED = "undistributed reproduction"


def table(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields the seconds by frames and servers, the original's and Skylane's."""
    study, compared = results["noscope-study"]["runs"], [*_compared_runs(results["noscope"])]
    counts = "".join(f" {count} |" for count in _SERVERS)
    yield f"| frames | N<sub>R</sub>, original |{counts} N<sub>R</sub>, Skylane |{counts}"
    yield "|" + " ---: |" * (3 + 2 * len(_SERVERS))
    for (frames, requests), seconds in _ORIGINAL.items():
        original = "".join(f" {number(each)} |" for each in seconds)
        cells = [_cell(study, frames, count) or _cell(compared, frames, count) for count in _SERVERS]
        sent, *skylane = (_mean(cells[0], "answered", 0), *(_mean(cell, "seconds", 1) for cell in cells))
        yield f"| {number(frames)} | {requests} |{original} {sent} |" + "".join(f" {each} |" for each in skylane)


def _compared_runs(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the runs of the comparison in the form of the study's."""
    for count in data["plan"]["servers"]:
        name = next(name for name in data["systems"] if name.startswith(f"Skylane, {count} "))
        for run in data["systems"][name]["by_drive"]:
            yield {
                "workers": count,
                "frames": data["plan"]["frames"],
                "answered": run["requests"],
                "seconds": run["seconds"],
            }


def _cell(runs: Sequence[Mapping[str, Any]], frames: int, workers: int) -> list[Mapping[str, Any]]:
    return [run for run in runs if (run["frames"], run["workers"]) == (frames, workers)]


def _mean(runs: Sequence[Mapping[str, Any]], column: str, digits: int) -> str:
    return number(fmean(run[column] for run in runs) if runs else math.nan, digits)


def latency_table(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields where the time of a frame goes: the original's figures, the reproduction and Skylane."""
    systems = results["noscope"]["systems"]
    keys = ("detector", "specialised", "network", "client_queue", "server_queue", "compute")
    headings = ("difference detector", "specialised network", "network", "client queue", "server queue", "compute")
    yield "| ms | " + " | ".join(headings) + " |"
    yield "| --- |" + " ---: |" * len(keys)
    original = [number(_ORIGINAL_STEPS_MS[key], 0) if key in _ORIGINAL_STEPS_MS else "" for key in keys]
    yield "| original, a single request | " + " | ".join(original) + " |"
    for name, each in systems.items():
        if name == _UNDISTRIBUTED:
            continue
        cells = [number(each["means"][f"{key}_ms"]["value"], 1) for key in keys]
        yield f"| {name} | " + " | ".join(cells) + " |"


def drives_table(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields how the result depends on the traffic of the drive."""
    data = results["noscope"]
    yield (
        "| drive | frames with a vehicle | changes of the answer | sent | reused | answered locally | points lost | speed-up |"
    )
    yield "| --- |" + " ---: |" * 7
    for drive, run in zip(data["drives"], data["systems"][_skylane(data)]["by_drive"], strict=True):
        shares = (f"{number(100 * run[f'{key}_share'], 1)} %" for key in ("sent", "reused", "local"))
        yield (
            f"| {drive['bag'].split('-')[1]} | {number(100 * drive['vehicle_share'], 0)} % | {drive['changes']} | "
            f"{' | '.join(shares)} | {number(run['loss_points'], 1)} | {number(run['speed_up'], 2)} |"
        )


def summary(results: Mapping[str, Any]) -> str:
    """Returns the figures that the original's speed-up is compared with, in one sentence."""
    data = results["noscope"]
    plan, skylane = data["plan"], data["systems"][_skylane(data)]
    means = skylane["means"]
    plain = data["systems"][_UNDISTRIBUTED]["means"]["accuracy"]["value"]
    gate, local = data["tuning"]["gate"], data["tuning"]["local"]
    sent = asdict(mean_of_runs([100 * run["sent_share"] for run in skylane["by_drive"]], share_of=100))
    verdict = verdict_text(interval_verdict(sent["low"], sent["high"], most=100 / ORIGINAL_SPEED_UP))
    return (
        f"On {plan['frames']} frames of each of {len(data['drives'])} synthetic drives, Skylane with one worker sends "
        f"{_interval(sent, 1)} % of the frames (the original: 9.8 %, at most 18.1 % for its "
        f"speed-up: {verdict}). Its accuracy is {number(means['accuracy']['value'], 1)} %, the reference network's "
        f"{number(plain, 1)} %: {_interval(means['loss_points'], 2)} points are lost. All drives together take the "
        f"undistributed reproduction {number(skylane['total_speed_up'], 2)} times as long, a single drive "
        f"{_interval(means['speed_up'], 2)} times. (Means with 95 % intervals over the drives, of the ratios geometric; a "
        f"mean squared error of {gate['mse']:g} for at most {gate['reuse_frames']} frames, thresholds of {local['c_low']:g} and "
        f"{local['c_high']:g}.)"
    )


def compared(results: Mapping[str, Any]) -> str:
    """Returns how Skylane's times and requests compare with those of the reproduction, by number of servers."""
    data = results["noscope"]
    counts, systems = data["plan"]["servers"], data["systems"]
    totals, intervals, sent, longer = [], [], [], []
    for count in counts:
        pair = [next(name for name in systems if name.startswith(f"{kind}, {count} ")) for kind in _KINDS]
        seconds, requests = ([[run[key] for run in systems[name]["by_drive"]] for name in pair] for key in _BY_DRIVE)
        totals.append(sum(seconds[0]) / sum(seconds[1]))
        logs = mean_of_runs([math.log(own / other) for own, other in zip(*seconds, strict=True)])
        intervals.append(f"{number(math.exp(logs.low), 2)} to {number(math.exp(logs.high), 2)}")
        sent.append(tuple(map(sum, requests)))
        longer.append(interval_verdict(logs.low, logs.high, least=0.0))
    decided = {True: "longer", False: "shorter", None: "not decided"}
    verdicts = [decided[each] for each in longer]
    verdict = _listed(verdicts) if len(set(verdicts)) > 1 else f"{verdicts[0]} with any number"
    return (
        f"With {_listed(counts)} servers, all drives together take Skylane {_listed(number(each, 2) for each in totals)} times "
        f"as long as the reproduction, and it sends {_listed(own for own, _ in sent)} frames against "
        f"{_listed(other for _, other in sent)}. By drive (geometric means over {len(seconds[0])} drives, 95 % intervals "
        f"{_listed(intervals)}) this is {verdict}. Skylane reuses only results that have arrived, the reproduction also those "
        "that are still on their way."
    )


def _listed(values: Iterable[Any]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


def chart(results: Mapping[str, Any]) -> Chart:
    """Shows how many times as fast as undistributed each system is, on all drives together."""
    systems = {name: each for name, each in results["noscope"]["systems"].items() if name != _UNDISTRIBUTED}
    labels = ["original, 500 frames", *systems]
    values = [ORIGINAL_SPEED_UP, *(each["total_speed_up"] for each in systems.values())]
    colours = [
        STAGES["batched"].colour,
        *(STAGES["inferred" if name.startswith("Skylane") else "crossing"].colour for name in systems),
    ]
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": labels,
        "x": values,
        "text": [number(each, 2) for each in values],
        "textposition": "inside",
        "insidetextanchor": "start",
        "textangle": 0,
        "insidetextfont": {"color": [text_colour(each) for each in colours], "size": 12},
        "marker": {"color": colours},
    }
    layout = {
        "showlegend": False,
        "xaxis": axis_from_zero("times as fast as undistributed, on one server"),
        "yaxis": {"autorange": "reversed", "type": "category"},
    }
    return Chart(
        "results-noscope", "Speed-up over the undistributed system", (trace,), layout, height=60 + 34 * len(labels)
    )


def reduce_study(runs: Path) -> dict[str, Any]:
    """Returns the columns of a study's `runs.csv` that the page needs, of the repetitions in which every cell was run.

    Each repetition plays another drive, so an incomplete one would compare different drives.
    """
    with runs.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["state"] == "done"]
    cells = {row["cell"] for row in rows}
    counts = Counter(row["repetition"] for row in rows)
    return {
        "runs": [
            {column: int(float(row[column])) for column in _COLUMNS} | {"seconds": round(float(row["measured_s"]), 3)}
            for row in rows
            if counts[row["repetition"]] == len(cells)
        ]
    }


def _skylane(data: Mapping[str, Any]) -> str:
    names: list[str] = [name for name in data["systems"] if name.startswith("Skylane")]
    return names[0]


def _interval(estimate: Mapping[str, float], digits: int) -> str:
    value, low, high = (number(estimate[key], digits) for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def main(arguments: Sequence[str]) -> None:
    """Writes the reduced study; the arguments are its `runs.csv` and the file to write."""
    Path(arguments[1]).write_text(json.dumps(reduce_study(Path(arguments[0])), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

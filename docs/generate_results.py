"""Writes the tables and charts of docs/results from the JSON files in docs/results/data.

`make results` runs the benchmarks and studies, from which the files are made, and then this script; so do `make results-noscope` and `make
freshness` for their parts. It replaces the text between the marks `<!-- begin NAME -->` and `<!-- end NAME -->`, writes the
charts to docs/images, and removes from the files what neither pages nor charts read. `tests/test_docs.py` compares the pages
with the files.
"""

import json
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from analysis.report.chapters.traces import axis, axis_from_zero
from analysis.report.content import Chart
from analysis.report.output.charts import write_figures
from analysis.report.output.number_format import number
from analysis.report.stage_styles import OUTCOME_COLOURS, STAGES, text_colour
from bench import codecs
from docs import freshness_results, noscope_results
from shared.runlog.latency_table import PARTS, WHERE

_DOCS = Path(__file__).parent
_PAGES = _DOCS / "results"
_DATA = _PAGES / "data"
_IMAGES = _DOCS / "images"
_FILES = (
    *("overhead", "transports-jpeg", "transports-raw", "baselines", "saturation", "gateway", "link"),
    *(
        "noscope",
        "noscope-study",
        "freshness",
        "freshness-real",
        "freshness-real-network",
        "codecs-real",
        "codecs-synthetic",
    ),
)

_TRANSPORTS = {
    "mqtt": "MQTT",
    "grpc": "gRPC, Skylane's service",
    "tfs-grpc": "gRPC, TensorFlow Serving",
    "oip-grpc": "gRPC, Open Inference",
    "oip-rest": "REST, Open Inference",
    "tfs-rest": "REST, TensorFlow Serving",
}
_BASELINES = {
    "mqtt": "Vehicle-cloud segmentation over MQTT",
    "grpc": "The same over TensorFlow Serving, gRPC",
    "rest": "The same over TensorFlow Serving, REST",
    "detect": "Edge offloading of object detection",
}
_CODING = {
    "codecs-real": "Cityscapes network, real drive (CamVid)",
    "codecs-synthetic": "road-small, synthetic drives",
}
_NODES = {"vehicle": ("edge", STAGES["demosaiced"].colour), "link": ("link", STAGES["crossing"].colour)}
_NODES |= {"cloud, without the inference": ("cloud", STAGES["batched"].colour)}
_SERIES = {"jpeg": STAGES["demosaiced"].colour, "raw": STAGES["inferred"].colour}

Results = Mapping[str, Any]  # The content of the JSON files, by name.


class _Read(dict[str, Any]):
    """A JSON object that remembers which of its keys were read."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return self.get(str(key)) is not None

    def __iter__(self) -> Iterator[str]:
        self.read.update(self.keys())
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if super().__contains__(key) else default

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def values(self) -> Any:
        return [self[key] for key in self]


def _read_parts(value: Any) -> Any:
    """Returns a value of a JSON file without the keys that were not read."""
    if isinstance(value, _Read):
        return {key: _read_parts(value[key]) for key in value.keys() if key in value.read}  # noqa: SIM118 (not an iteration)
    return [_read_parts(each) for each in value] if isinstance(value, list) else value


def read_results() -> Results:
    """Reads the JSON files."""
    return {
        name: json.loads((_DATA / f"{name}.json").read_text(encoding="utf-8"), object_hook=_Read) for name in _FILES
    }


def page_blocks(results: Results) -> dict[str, dict[str, Iterable[str]]]:
    """Returns the lines of each block, by page."""
    return {
        "index.md": {
            "setup": _setup(results),
            "summary": _summary(results),
            "load": _load_table(results),
            "noscope": [_wrapped(noscope_results.summary(results))],
            "noscope-seconds": noscope_results.table(results),
            "noscope-compared": [_wrapped(noscope_results.compared(results))],
            "noscope-latency": noscope_results.latency_table(results),
            "noscope-drives": noscope_results.drives_table(results),
            "real": [_wrapped(freshness_results.real_summary(*_real(results)))],
            "freshness": [_wrapped(freshness_results.summary(results["freshness"]))],
        },
        "freshness.md": {
            "real-summary": [_wrapped(freshness_results.real_summary(*_real(results)))],
            **freshness_results.real_blocks(*_real(results)),
            "summary": [_wrapped(freshness_results.summary(results["freshness"]))],
            **freshness_results.blocks(results["freshness"]),
        },
    }


def replaced(blocks: Mapping[str, Iterable[str]], text: str) -> str:
    """Returns a page with the text between its marks replaced."""
    for name, lines in blocks.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        _, mark, after = rest.partition(end)
        assert mark, f"the page has no marks of the block {name}"
        text = "".join((before, "\n".join([begin, *lines, end]), after))
    return text


def charts(results: Results) -> tuple[Chart, ...]:
    """Returns the charts of the pages."""
    return (
        _transport_chart(results),
        _baseline_chart(results),
        _load_chart(results),
        _link_chart(results),
        noscope_results.chart(results),
        *freshness_results.charts(results["freshness"]),
        codecs.chart("results-codecs", {title: results[name] for name, title in _CODING.items()}),
    )


def _real(results: Results) -> tuple[Any, Any]:
    return results["freshness-real"], results["freshness-real-network"]


def _setup(results: Results) -> Iterable[str]:
    machine, manifest = results["overhead"]["machine"], results["link"]["manifest"]
    broker = re.search(r"(Mosquitto \S+|embedded)", results["overhead"]["broker"])
    day = datetime.fromtimestamp(manifest["started_ns"] / 1e9, UTC)
    yield _wrapped(
        f"Measured on {day.day} {day:%B %Y} with Skylane {machine['skylane']} (commit {manifest.get('commit')}): "
        f"{machine['processor']}, {machine['cores']} cores, no GPU; Python {machine['python']}, TensorFlow "
        f"{machine['tensorflow']}, {broker[0] if broker else 'another broker'}. Vehicle, broker and worker share the cores."
    )


def _summary(results: Results) -> Iterable[str]:
    mqtt = results["transports-jpeg"]["transports"]["mqtt"]
    overhead, load, gateway = results["overhead"], results["saturation"], results["gateway"]
    masks = sum(sum(each["answers"].values()) for each in gateway["rounds"])
    yield _wrapped(
        f"- **A frame costs {number(mqtt['overhead_ms']['median'], 1)} ms more than its inference** over MQTT with JPEG, from "
        f"the moment it is due to its decoded mask (median of {mqtt['n']}; the inference takes "
        f"{number(mqtt['parts']['inferred'], 1)} ms)."
    )
    yield _wrapped(
        f"- **The whole round trip takes {number(overhead['overhead_ratio'], 2)} times the bare inference** "
        f"(n = {overhead['samples']['remote']}). {overhead['window']} frames in flight reach "
        f"{_percent(overhead['throughput_ratio'])} of the bare engine's throughput."
    )
    yield _wrapped(
        f"- **Overload**: {load['plan']['vehicles']} vehicles offer {load['plan']['factor']:g} times the capacity; frames worth "
        f"{_percent(load['share'])} of it are answered in time (Jain's index of fairness: {number(load['jain'], 3)}), and "
        f"{load['unaccounted'] or 'none'} of the others is unaccounted for."
    )
    yield _wrapped(
        f"- **Masks**: {gateway['wrong_pixels'] or 'no'} wrong pixels in {masks:,} masks from "
        f"{len(set(gateway['clients'].values()))} endpoints at once, compared with direct calls."
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 128, subsequent_indent="  " if text.startswith("- ") else "", break_on_hyphens=False)


def _comparisons(results: Results) -> Iterable[tuple[str, float, str, float, Mapping[str, Any]]]:
    """Yields each baseline with the first transport that carries the same pixels: titles, overheads and ratio."""
    data = results["baselines"]
    for name, title in _BASELINES.items():
        ratio = next(each for each in data["ratios"] if each["baseline"] == name)
        own = data["skylane"][ratio["transport"]]["overhead_ms"]["median"]
        yield title, data["baselines"][name]["overhead_ms"]["median"], ratio["transport"], own, ratio


def _load_table(results: Results) -> Iterable[str]:
    load, gateway = results["saturation"], results["gateway"]
    seconds, vehicles = load["plan"]["seconds"], load["plan"]["vehicles"]
    rounds = len(load["rounds"]) // 2
    yield "| load | in time, of the bare engine's rate | Jain's index | rounds |"
    yield "| --- | ---: | ---: | ---: |"
    for title, name, jain in (
        (f"{vehicles} vehicles with equal rates", "equal", load["jain"]),
        ("the same, one with ten times the rate", "greedy", load["greedy_jain"]),
    ):
        share = median(each["share"] for each in load["rounds"] if each["load"] == name)
        yield f"| {title} | {_percent(share)} | {number(jain, 3)} | {rounds} of {seconds:g} s |"
    title = f"{gateway['plan']['clients']} clients of all endpoints (`python -m bench gateway`)"
    rounds, seconds = len(gateway["rounds"]), gateway["plan"]["seconds"]
    yield f"| {title} | {_percent(gateway['ratio'])} | {number(gateway['jain'], 3)} | {rounds} of {seconds:g} s |"


def _transport_chart(results: Results) -> Chart:
    """Shows the parts of the overhead by transport and codec; the labels have its median and 95th percentile."""
    bars = {}
    for name, title in _TRANSPORTS.items():
        for codec in _SERIES:
            record = results[f"transports-{codec}"]["transports"][name]
            median_ms, p95_ms = (number(record["overhead_ms"][key] or float("nan"), 1) for key in ("median", "p95"))
            bars[f"{title}, {codec}: <b>{median_ms}</b> ({p95_ms})"] = record["parts"]
    stages = [str(part) for part in PARTS if part != "inferred"]
    traces = [
        _bars(title, list(bars), [sum(parts[s] for s in stages if WHERE[s] == node) for parts in bars.values()], colour)
        for title, (node, colour) in _NODES.items()
    ]
    layout = {
        "barmode": "stack",
        "legend": {"traceorder": "normal"},
        "xaxis": axis_from_zero("median time beside the inference, ms"),
        "yaxis": _CATEGORIES,
    }
    return Chart("results-transports", "Parts of the overhead by transport", tuple(traces), layout, height=330)


def _baseline_chart(results: Results) -> Chart:
    """Shows the overhead of each original method beside that of Skylane."""
    compared = list(_comparisons(results))
    titles = [f"{title}<br>Skylane: {transport}" for title, _, transport, *_ in compared]
    original = _bars("method of the original", titles, [each[1] for each in compared], STAGES["crossing"].colour)
    skylane = _bars("Skylane", titles, [each[3] for each in compared], STAGES["inferred"].colour)
    skylane["text"] = [f"{number(own, 1)} (ratio {number(ratio['ratio'], 3)})" for *_, own, ratio in compared]
    skylane["textposition"] = "outside"
    layout = {"xaxis": axis("median time beside the inference, ms (logarithmic)", type="log", dtick=1, range=[0, 3.2])}
    return Chart("results-baselines", "Overheads", (original, skylane), layout | {"yaxis": _CATEGORIES}, height=250)


def _load_chart(results: Results) -> Chart:
    """Shows what becomes of the frames of vehicles that offer more than the worker can do."""
    names = {"equal": "equal rates", "greedy": "one vehicle with<br>ten times the rate"}
    counts = {
        title: [each["outcomes"] for each in results["saturation"]["rounds"] if each["load"] == name]
        for name, title in names.items()
    }
    totals = {title: sum(sum(each.values()) for each in rounds) for title, rounds in counts.items()}
    traces = []
    for outcome, colour in OUTCOME_COLOURS.items():
        shares = [
            100 * sum(each.get(outcome, 0) for each in rounds) / totals[title] for title, rounds in counts.items()
        ]
        if any(shares):
            traces.append(_bars(outcome, list(counts), shares, colour, digits=0))
    layout = {
        "barmode": "stack",
        "legend": {"traceorder": "normal"},
        "xaxis": axis("share of all frames, %", range=[0, 100]),
        "yaxis": _CATEGORIES,
    }
    return Chart("results-load", "Outcomes under overload", tuple(traces), layout, height=180)


def _link_chart(results: Results) -> Chart:
    """Shows the median total latency by link and codec."""
    runs = [run for run in results["link"]["runs"] if run["state"] == "done"]
    links = {"none": "no link", "5g": "5G-like link", "4g": "4G-like link"}
    traces = [
        _bars(
            {"jpeg": "JPEG", "raw": "raw pixels"}[codec],
            list(links.values()),
            [
                median(run["total_p50_ms"] for run in runs if (run["codec"], run["link"]) == (codec, each))
                for each in links
            ],
            colour,
            digits=0,
        )
        for codec, colour in _SERIES.items()
    ]
    layout = {"xaxis": axis_from_zero("median total latency of a frame, ms"), "yaxis": _CATEGORIES}
    return Chart("results-link", "Latency over links", tuple(traces), layout, height=200)


_CATEGORIES = {"autorange": "reversed", "type": "category"}


def _bars(name: str, labels: Sequence[str], values: Sequence[float], colour: str, digits: int = 1) -> dict[str, Any]:
    """Returns horizontal bars with their values in them."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": labels,
        "x": values,
        "text": [number(value, digits) for value in values],
        "textposition": "auto",
        "textangle": 0,
        "constraintext": "none",
        "textfont": {"size": 12},
        "insidetextfont": {"color": text_colour(colour), "size": 12},
        "marker": {"color": colour},
    }


def _percent(share: float) -> str:
    return f"{number(100 * share, 0)} %"


def write(folder: Path | None = None) -> None:
    """Writes the pages; unless another folder for them is given, also the charts and the reduced JSON files."""
    results = read_results()
    for name, blocks in page_blocks(results).items():
        text = replaced(blocks, (_PAGES / name).read_text(encoding="utf-8"))
        ((folder or _PAGES) / name).write_text(text, encoding="utf-8")
    if folder is None:
        with tempfile.TemporaryDirectory() as drawn:
            for path in write_figures(charts(results), Path(drawn)):
                if path.suffix == ".svg":
                    shutil.copy(path, _IMAGES)
        for name, data in results.items():
            text = json.dumps(_read_parts(data), indent=1) + "\n"
            (_DATA / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if sys.argv[1:] else None)

"""`skylane bench baselines`."""

from collections.abc import Iterator, Mapping
from typing import Any

from bench.baselines.baseline_comparison import BaselinePlan, measure
from bench.baselines.catalogue import BASELINES
from bench.harness import options
from bench.harness.output import result_table, span
from shared.terminal_table import Table

_MIN_PART_MS = 0.5  # Smaller parts of the overhead are not listed.
_NOT_PARTS = ("total", "inferred", "in_callback", "in_lists", "bytes_up", "bytes_down")
_STOPWATCH_NOTE = (
    "origin of “post-processing takes 90 %”: the first system takes the time when TensorFlow's call returns. On a GPU that is "
    "before the work is done; on this CPU, TensorFlow's asynchronous execution shows the same effect:"
)


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    records = {f"reproduction: {BASELINES[name].title}": record for name, record in result["baselines"].items()}
    records |= {f"Skylane, {name}": record for name, record in result["skylane"].items()}
    percentiles = ("min", "median", "p95")
    yield result_table(
        f"Overhead, ms: a frame's round trip without its inference; {result['model']}, one in flight",
        {"system": "<", "n": "", **dict.fromkeys(percentiles, ".1f"), "inference": ".0f", "of the overhead": "<"},
        [
            (
                name,
                record["n"],
                *(record["overhead_ms"][key] for key in percentiles),
                record["parts"]["inferred"],
                ", ".join(
                    f"{part} {duration_ms:.1f}"
                    for part, duration_ms in record["parts"].items()
                    if part not in _NOT_PARTS and duration_ms >= _MIN_PART_MS
                ),
            )
            for name, record in records.items()
        ],
        "Reproductions of a method, written for this comparison; the original code was not run.",
    )
    rows = []
    for each in result["ratios"]:
        baseline, ratio, by_round = BASELINES[each["baseline"]], each["ratio"], each["by_round"]
        rows.append((baseline.title, each["transport"], ratio, span(by_round), baseline.verdict(ratio, by_round)))
    yield result_table(
        f"Skylane's overhead ÷ the reproduction's, medians, {result['rounds']} rounds in turn",
        {"reproduction": "<", "Skylane by": "<", "ratio": ".3f", "by round": "", "target": ""},
        rows,
    )
    yield from _mask_lines(result["masks"])
    yield from _stopwatch_lines(result["stopwatch"])
    yield from _overhead_lines(result["baselines"])


def _mask_lines(masks: Mapping[str, Any]) -> Iterator[str]:
    shares = "; ".join(f"{name}: {share:.6%}" for name, share in masks["skylane_same"].items())
    yield f"pixels of Skylane's masks that equal those of the direct call: {shares}"
    first = masks["first_system"]
    if first is not None:
        yield (
            f"pixels of the first system's masks after their return as coloured JPEG, {first['frames']} frames: "
            f"{first['exact']:.1%} have exactly the colour of their class, {first['nearest']:.2%} are nearest to it"
        )


def _stopwatch_lines(stopwatch: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    if stopwatch:
        yield _STOPWATCH_NOTE
    for name, parts in stopwatch.items():
        share = parts["postprocessing"] / sum(parts.values())
        yield (
            f"  {name}: prediction {parts['prediction']:.1f} ms, post-processing {parts['postprocessing']:.1f} ms "
            f"({share:.0%} of both)"
        )


def _overhead_lines(records: Mapping[str, Any]) -> Iterator[str]:
    """Explains the largest parts of the reproductions' overhead."""
    for name, record in records.items():
        title, parts, overhead_ms = BASELINES[name].title, record["parts"], record["overhead_ms"]["median"]
        if "in_lists" in parts:
            yield (
                f"{title}: the vehicle spends {parts['in_lists']:.0f} of {overhead_ms:.0f} ms "
                f"({parts['in_lists'] / overhead_ms:.0%}) on conversions to Python lists and messages, and back"
            )
        if "in_callback" in parts:
            yield (
                f"{title}: {parts['in_callback']:.0f} ms per frame in the callback, during which nothing else is received "
                f"or sent; {parts['bytes_up'] / 1e3:.0f} KB up, {parts['bytes_down'] / 1e3:.0f} KB down"
            )


baselines = options.bench_command(
    "baselines",
    BaselinePlan,
    measure,
    _tables,
    "Compare with reproductions of the systems that Skylane follows: same frames, model and machine, in turn.",
    json=options.JSON_FILE,
)

"""`skylane bench baselines`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.baselines import baseline_comparison
from bench.baselines.catalogue import BASELINES
from bench.harness.output import machine_line
from bench.harness.sample_bag import sample_bag
from cloud.models.repository import default_root
from shared.terminal_table import Table

_LEAST_MS = 0.5  # Of a part that is told.
_SUMS = ("total", "inferred", "in_callback", "in_lists", "bytes_up", "bytes_down")  # Told elsewhere, or no times.
_WHERE_IT_WENT = (
    "where “post-processing takes 90 %” went: the first system's stopwatch stops when TensorFlow's call returns. On a GPU "
    "that is before the work is done; on this CPU the same is had by having TensorFlow queue its work:"
)


@click.command()
@click.option("--bag", type=click.Path(exists=True, path_type=Path), help="Frames to send. [a synthetic drive]")
@click.option("--models", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option("--model", default="road-small", show_default=True)
@click.option(
    "--baseline",
    "names",
    multiple=True,
    type=click.Choice([*BASELINES]),
    help="These alone; scores: with --model street-lite. [all but scores]",
)
@click.option("--frames", type=click.IntRange(2, 10_000), default=20, show_default=True, help="A round.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=3, show_default=True)
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there as JSON.")
def baselines(bag: Path | None, models: Path | None, names: tuple[str, ...], path: Path | None, **how: Any) -> None:
    """Compare with reproductions of how the systems we come from did it: same frames, model and machine, in turn."""
    plan = baseline_comparison.Plan(
        bag=bag or sample_bag(how["frames"]),
        models=models or default_root(),
        baselines=names or baseline_comparison.FOR_ANY_MODEL,
        **how,
    )
    with Console(stderr=True).status("preparing") as status:
        result = baseline_comparison.measure(plan, status.update)
    if path is not None:
        path.write_text(json.dumps(result, indent=2), encoding="utf-8")
    _print(result, Console())


def _print(result: Mapping[str, Any], console: Console) -> None:
    console.print(_overheads(result))
    console.print(_ratios(result))
    for line in (*_masks(result["masks"]), *_stopwatch(result["stopwatch"]), *_why(result["baselines"])):
        console.print(line, highlight=False, markup=False)
    console.print(machine_line(result["machine"], result["broker"]), highlight=False)
    console.print(result["engine"], highlight=False)


def _overheads(result: Mapping[str, Any]) -> Table:
    table = Table(
        title=f"Overhead, ms: a frame's journey without its inference; {result['model']}, one in flight",
        caption="Reproductions of a method, written fresh; the originals' own code was not run.",
    )
    for heading in ("way", "n", "min", "median", "p95", "inference", "of the overhead"):
        table.add_column(heading, justify="left" if heading in ("way", "of the overhead") else "right")
    rows = {f"reproduction: {BASELINES[name].title}": figures for name, figures in result["baselines"].items()}
    rows |= {f"Skylane, {way}": figures for way, figures in result["skylane"].items()}
    for name, figures in rows.items():
        times, parts = figures["overhead_ms"], figures["parts"]
        told = ", ".join(
            f"{part} {took_ms:.1f}" for part, took_ms in parts.items() if part not in _SUMS and took_ms >= _LEAST_MS
        )
        table.add_row(
            name,
            str(figures["n"]),
            *(f"{times[key]:.1f}" for key in ("min", "median", "p95")),
            f"{parts['inferred']:.0f}",
            told,
        )
    return table


def _ratios(result: Mapping[str, Any]) -> Table:
    table = Table(title=f"Skylane's overhead ÷ the reproduction's, medians, {result['rounds']} rounds in turn")
    for heading in ("reproduction", "Skylane by", "ratio", "by round", "target"):
        table.add_column(heading, justify="left" if heading in ("reproduction", "Skylane by") else "right")
    for each in result["ratios"]:
        baseline, ratio, by_round = BASELINES[each["baseline"]], each["ratio"], each["by_round"]
        span = f"{min(by_round):.3f} to {max(by_round):.3f}"
        table.add_row(baseline.title, each["way"], f"{ratio:.3f}", span, baseline.verdict(ratio, by_round))
    return table


def _masks(masks: Mapping[str, Any]) -> list[str]:
    same = masks["skylane_same"]
    lines = [f"pixels of Skylane's masks as the direct call gives them: {_told(same)}"]
    left = masks["first_system"]
    if left is not None:
        lines.append(
            f"pixels of the first system's masks after their way back as coloured JPEG, {left['frames']} frames: "
            f"{left['exact']:.1%} have their class's exact colour, {left['nearest']:.2%} are nearest to it"
        )
    return lines


def _told(same: Mapping[str, float]) -> str:
    return "; ".join(f"{way}: {share:.6%}" for way, share in same.items())


def _stopwatch(watch: Mapping[str, Mapping[str, float]]) -> list[str]:
    lines = [_WHERE_IT_WENT] if watch else []
    for name, parts in watch.items():
        share = parts["postprocessing"] / sum(parts.values())
        lines.append(
            f"  {name}: prediction {parts['prediction']:.1f} ms, post-processing {parts['postprocessing']:.1f} ms "
            f"({share:.0%} of both)"
        )
    return lines


def _why(baselines: Mapping[str, Any]) -> list[str]:
    """What of a reproduction's overhead is whose."""
    lines = []
    for name, figures in baselines.items():
        parts, overhead_ms = figures["parts"], figures["overhead_ms"]["median"]
        if "in_lists" in parts:
            share = parts["in_lists"] / overhead_ms
            lines.append(
                f"{BASELINES[name].title}: {parts['in_lists']:.0f} of {overhead_ms:.0f} ms ({share:.0%}) go into "
                "Python lists, their text or message, and back, at the vehicle alone"
            )
        if "in_callback" in parts:
            lines.append(
                f"{BASELINES[name].title}: {parts['in_callback']:.0f} ms a frame inside the callback, in which nothing "
                f"else is received or sent; {parts['bytes_up'] / 1e3:.0f} KB up, {parts['bytes_down'] / 1e3:.0f} KB down"
            )
    return lines

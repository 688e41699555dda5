"""Prints the result of the load comparison."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from bench.harness.output import machine_line
from shared.runlog.percentiles import NOTE, shown
from shared.terminal_table import Table

_TARGETS = {"jpeg": 1.15, "raw": 1.0}  # Maximum overhead relative to the fastest peer over TCP.
_TARGET_WAY = "skylane grpc"


def show(result: Mapping[str, Any], console: Console) -> None:
    """Prints the tables, the ratios, and the skipped servers."""
    for codec, figures in result["cells"].items():
        if figures:
            console.print(_cells(result, codec, figures))
        if result["ratios"][codec]:
            console.print(_ratios(codec, result["ratios"][codec]))
        if floor := result["floors"][codec]:
            console.print(_floor(codec, figures, result["ratios"][codec], floor), highlight=False)
    for line in result["wins"]:
        console.print(f"A peer wins. {line}.", highlight=False)
    for name, reason in result["skipped"].items():
        console.print(f"Skipped: {name}: {reason}", highlight=False, markup=False)
    console.print("; ".join(result["versions"].values()), highlight=False)
    console.print(machine_line(result["machine"]), highlight=False)


def _cells(result: Mapping[str, Any], codec: str, figures: Mapping[str, Any]) -> Table:
    clients = result["plan"]["clients"]
    table = Table(
        title=f"{result['model']}, {codec}: ms that serving adds to the inference of a call",
        caption=f"One call in flight; /s: answers a second with {clients} clients; wrong: pixels of all masks, or "
        f"bytes of all scores, against the direct call. {NOTE}",
    )
    table.add_column("way", no_wrap=True)
    for heading in ("n", "median", "p95", "p99", "min", "inferred", "/s", "wrong"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, each in sorted(figures.items(), key=lambda item: float(item[1]["overhead_ms"]["median"])):
        added = each["overhead_ms"]
        table.add_row(
            name,
            str(each["n"]),
            *(shown(added[key]) for key in ("median", "p95", "p99", "min")),
            f"{each['inference_ms']['median']:.1f}",
            f"{each['answers_hz']:.2f}",
            str(each["wrong_pixels"]),
        )
    return table


def _floor(codec: str, figures: Mapping[str, Any], ratios: Mapping[str, Any], floor: Mapping[str, Any]) -> str:
    """Returns the lower limit of any gRPC server, and its distance from the target."""
    name = floor["name"]
    text = f"The floor. {codec}: {name}, the function behind a bare gRPC server, adds "
    text += f"{figures[name]['overhead_ms']['median']:.2f} ms to a call"
    for other in (_TARGET_WAY, ratios.get(_TARGET_WAY, {}).get("to")):
        if other in floor["of"]:
            text += f", {floor['of'][other]:.2f} of what {other} adds"
    return f"{text}."


def _ratios(codec: str, ratios: Mapping[str, Any]) -> Table:
    table = Table(title=f"{codec}: overhead of our transports, divided by that of the fastest peer over TCP")
    table.add_column("way", no_wrap=True)
    for heading in ("fastest peer", "ratio", "by round", "target"):
        table.add_column(heading)
    for name, each in ratios.items():
        met = "met" if each["ratio"] <= _TARGETS[codec] else "NOT met"
        table.add_row(
            name,
            each["to"],
            f"{each['ratio']:.3f}",
            f"{min(each['by_round']):.3f} to {max(each['by_round']):.3f}",
            f"{_TARGETS[codec]}, {met}" if name == _TARGET_WAY else "",
        )
    return table

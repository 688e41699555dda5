"""`skylane bench clocks`: the proof that the clock bound in the log holds."""

import json
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from bench.clocks.clock_accuracy import measure
from bench.harness.output import machine_line
from shared.runlog.percentiles import NOTE, shown
from shared.terminal_table import Table

_COLUMNS = ("rows", "within", "close", "error p50", "p99", "max", "bound p50", "target")


@click.command()
@click.option("--frames", type=click.IntRange(20, 100_000), default=250, show_default=True, help="A clock and link.")
@click.option("--seed", type=click.IntRange(0, 1 << 62), default=0, show_default=True, help="Of the links' jitter.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
def clocks(frames: int, seed: int, *, as_json: bool) -> None:
    """Hold the log's clock offsets against the truth: known wrong clocks, over links of known delays."""
    with Console(stderr=True).status("preparing") as status:
        result = measure(frames, status.update, seed=seed)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result, Console())


def _print(result: Mapping[str, Any], console: Console) -> None:
    is_short = any(case["error_ms"]["p99"] is None for case in result["cases"])
    table = Table(title="Clock offsets against the truth", caption=NOTE if is_short else "")
    for heading in ("up + down", "worker"):
        table.add_column(heading)
    for heading in _COLUMNS:
        table.add_column(heading, justify="right")
    for case in result["cases"]:
        error_ms, bound_ms = case["error_ms"], case["bound_ms"]
        values_ms = (error_ms["median"], error_ms["p99"], error_ms["max"], bound_ms["median"])
        table.add_row(
            f"{case['delay_up_ms']:g} + {case['delay_down_ms']:g} ms",
            case["clock"]["name"],
            str(case["rows"]),
            f"{min(case['within'].values()):.1%}",
            "" if case["close"] is None else f"{case['close']:.1%}",
            *map(shown, values_ms),
            "met" if case["is_met"] else "missed",
        )
    console.print(table)
    targets = result["targets"]
    console.print(
        f"up + down: delays of the link. within: share of rows in which the truth lies within the stated bound, the least "
        f"of those of offset, uplink and downlink. close: share in which the offset errs by less than {targets['symmetric_error_ms']:g} ms, asked for where up and down are "
        f"alike: elsewhere it errs by half of what they differ, which no exchange can tell. error, bound: of the offset, "
        f"ms. Target: {targets['share']:.0%} of each share; "
        f"{'met' if result['is_met'] else 'MISSED'} over {result['rows']} rows.",
        highlight=False,
    )
    console.print(
        f"jitter of {result['jitter_ms']:g} ms each way, seed {result['seed']}; the link's own lateness "
        f"{shown(result['link_late_ms']['median'])} ms (p99 {shown(result['link_late_ms']['p99'])})",
        highlight=False,
    )
    console.print(machine_line(result["machine"], result["broker"]), highlight=False)

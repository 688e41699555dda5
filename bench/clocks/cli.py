"""`skylane bench clocks`: checks that the error bound of the clock offset in the log holds."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from bench.clocks.clock_accuracy import measure
from bench.harness import options
from bench.harness.output import progress, result_table, show
from shared.runlog.percentiles import NOTE, shown
from shared.terminal_table import Table


@click.command()
@options.number("--frames", 250, 20, 100_000, "Frames per clock and link.")
@options.number("--seed", 0, 0, 1 << 62, "Seed of the links' jitter.")
@options.json_flag
def clocks(frames: int, seed: int, *, as_json: bool) -> None:
    """Compare the log's clock offsets with the truth: clocks with known errors, over links with known delays."""
    with progress() as on_step:
        result = measure(frames, on_step, seed=seed)
    show(result, tables(result), as_json=as_json)


def tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    """Yields the table of a result and its explanation."""
    rows = []
    for case in result["cases"]:
        error_ms, bound_ms = case["error_ms"], case["bound_ms"]
        values_ms = (error_ms["median"], error_ms["p99"], error_ms["max"], bound_ms["median"])
        rows.append(
            (
                f"{case['delay_up_ms']:g} + {case['delay_down_ms']:g} ms",
                case["clock"]["name"],
                case["rows"],
                min(case["within"].values()),
                case["close"],
                *map(shown, values_ms),
                "met" if case["is_met"] else "missed",
            )
        )
    columns = {"up + down": "<", "worker": "<", "rows": "", "within": ".1%", "close": ".1%"}
    columns |= dict.fromkeys(("error p50", "p99", "max", "bound p50", "target"), "")
    is_short = any(case["error_ms"]["p99"] is None for case in result["cases"])
    yield result_table("Clock offsets compared with the truth", columns, rows, NOTE if is_short else "")
    targets = result["targets"]
    yield (
        f"up + down: delays of the link. within: share of rows whose true value lies within the stated error bound, the least "
        f"of offset, uplink and downlink. close: share whose offset error is below {targets['symmetric_error_ms']:g} ms, "
        f"required only if up and down are equal: otherwise the error is half of their difference, which no exchange of "
        f"messages can detect. error, bound: of the offset, ms. Target: {targets['share']:.0%} of each share; "
        f"{'met' if result['is_met'] else 'MISSED'} over {result['rows']} rows."
    )
    late_ms = result["link_late_ms"]
    yield (
        f"jitter of {result['jitter_ms']:g} ms each way, seed {result['seed']}; lateness of the link emulator "
        f"{shown(late_ms['median'])} ms (p99 {shown(late_ms['p99'])})"
    )
